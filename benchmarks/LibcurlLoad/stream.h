// One live stream: an upload resource that is created, appended to by one long request, and completed.

#ifndef STREAM_H
#define STREAM_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

struct generator;

enum stream_state {
  STREAM_WAITING,     // for its time to begin
  STREAM_CREATING,    // POST without content
  STREAM_LIVE,        // PATCH, chunked, without end
  STREAM_ENDING,      // the same, its end is being sent
  STREAM_COMPLETING,  // PATCH without content that completes the upload
  STREAM_DONE,
  STREAM_FAILED,
};

struct stream {
  struct generator *generator;
  CURL *easy;
  char *location;              // what a response says; until the request ends
  struct curl_slist *fields;   // this stream's own; the others are shared
  uint64_t sent;               // bytes that libcurl has taken
  uint32_t due;                // messages
  uint32_t acknowledged;       // messages
  uint32_t first_round;        // of the schedule: that of its first message
  int socket;                  // -1 while libcurl has none for it
  uint16_t status;             // of the response that is being read
  uint8_t state;
  bool is_paused;
};

// Begins the creation.
void stream_begin(struct stream *stream);

// Another message is due: libcurl is made to take it, now.
void stream_push(struct stream *stream);

// No more messages: the request is to end.
void stream_end(struct stream *stream);

// libcurl says that the request is over: the next one begins.
void stream_request_ended(struct stream *stream, CURLcode code);

#endif
