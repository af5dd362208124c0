// One live stream. It creates an upload resource, appends to it with one long request, and completes it.

#ifndef STREAM_H
#define STREAM_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

struct generator;

enum stream_state {
  STREAM_WAITING,     // its time to begin has not come
  STREAM_CREATING,    // POST without content
  STREAM_LIVE,        // PATCH, chunked, without end
  STREAM_ENDING,      // the same, while its end is being sent
  STREAM_COMPLETING,  // PATCH without content that completes the upload
  STREAM_DONE,
  STREAM_FAILED,
};

struct stream {
  struct generator *generator;
  CURL *easy;
  char *location;              // the field of a response, until the request ends
  struct curl_slist *fields;   // fields of this stream; the others are shared
  uint64_t sent;               // bytes that libcurl has taken
  uint32_t due;                // messages
  uint32_t acknowledged;       // messages
  uint32_t first_round;        // the round of the schedule with its first message
  int socket;                  // -1 if libcurl has no socket for it
  uint16_t status;             // of the response that is being read
  uint8_t state;
  bool is_paused;
};

// Begins the creation.
void stream_begin(struct stream *stream);

// Adds a due message, and makes libcurl send it now.
void stream_push(struct stream *stream);

// Ends the request after the messages so far.
void stream_end(struct stream *stream);

// Handles the end of a request, and begins the next one.
void stream_request_ended(struct stream *stream, CURLcode code);

#endif
