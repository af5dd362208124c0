// All streams on one thread: libcurl's multi socket interface on epoll, and an absolute schedule on a timerfd.
//
// Slot n of the schedule is due at epoch + n × period / streams, and belongs to stream n modulo streams: so the streams'
// phases are spread evenly, no message's time depends on when the one before was sent, and no heap of timers is needed.

#ifndef GENERATOR_H
#define GENERATOR_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

#include "histogram.h"
#include "options.h"
#include "stream.h"

// Of the process, at one moment.
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
  int *changed;           // descriptors whose watch is not yet what libcurl wants
  unsigned changed_count;
  int64_t curl_deadline;  // when libcurl wants to be called, 0 for at once; INT64_MAX for never

  int64_t epoch;
  uint64_t next_slot;
  unsigned begun, live, over, failed;
  int64_t settled;     // since when all streams are live
  int64_t window_from; // due times that are measured: from here
  int64_t window_to;   // up to here
  bool is_ending;

  struct usage usage_before, usage_from, usage_to;
  uint64_t window_due, window_sent, window_acknowledged;
  struct histogram acknowledged, lateness;
};

// Runs it all. Returns false when anything failed.
bool generator_run(struct generator *generator);

// What streams say.
void generator_is_live(struct generator *generator);
void generator_is_over(struct generator *generator);
void generator_failed(struct generator *generator, const struct stream *stream, const char *what, const char *why);
void generator_sent(struct stream *stream, uint32_t message);
void generator_acknowledged(struct stream *stream, uint32_t message);

// Tells libcurl that a socket is ready (CURL_CSELECT_…).
void generator_drive(struct generator *generator, int socket, int readiness);

#endif
