// Runs all streams on one thread, with libcurl's multi socket interface on epoll and an absolute schedule on a timerfd.
//
// Slot n of the schedule is due at epoch + n × period / streams, and belongs to stream n modulo streams. So the phases
// of the streams are spread evenly. No message's time depends on the sending of the one before, and no heap of timers
// is necessary.

#ifndef GENERATOR_H
#define GENERATOR_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

#include "histogram.h"
#include "options.h"
#include "stream.h"

// The usage of the process at one moment.
struct usage {
  double user;        // s of CPU
  double system;      // s of CPU
  uint64_t resident;  // bytes
};

struct generator {
  struct options options;
  CURLM *multi;
  struct curl_slist *creation_fields, *append_fields, *plain_fields;
  struct stream *streams;

  int epoll, timer;
  struct watch *watches;  // by descriptor
  int *changed;           // descriptors whose watch differs from libcurl's request
  unsigned changed_count;
  int64_t curl_deadline;  // when libcurl must be called: 0 for now, INT64_MAX for never

  int64_t epoch;
  uint64_t next_slot;
  unsigned begun, live, over, failed;
  int64_t settled;     // when all streams had become live
  int64_t window_from; // the first due time that is measured
  int64_t window_to;   // the end of the measured due times
  bool is_ending;

  struct usage usage_before, usage_from, usage_to;
  uint64_t window_due, window_sent, window_acknowledged;
  struct histogram acknowledged, lateness;
};

// Runs all streams to their end. Returns false if anything failed.
bool generator_run(struct generator *generator);

// Events of the streams.
void generator_is_live(struct generator *generator);
void generator_is_over(struct generator *generator);
void generator_failed(struct generator *generator, const struct stream *stream, const char *what, const char *why);
void generator_sent(struct stream *stream, uint32_t message);
void generator_acknowledged(struct stream *stream, uint32_t message);

// Tells libcurl that a socket is ready (CURL_CSELECT_…).
void generator_drive(struct generator *generator, int socket, int readiness);

#endif
