#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "generator.h"

enum {
  // libcurl's minimum, because a stream only sends a message now and then.
  UPLOAD_BUFFER = 16 * 1024,
  RECEIVE_BUFFER = 1024,
  // The maximum number of calls for one message, if libcurl does not send all of it at once.
  SENDS_IN_A_ROW = 16,
};

// libcurl rejects a known option with a valid value only if memory is exhausted.
#define SET(option, value)                                                  \
  do {                                                                      \
    if (curl_easy_setopt(stream->easy, option, value) != CURLE_OK) abort(); \
  } while (0)

static void fail(struct stream *stream, const char *what, const char *why) {
  stream->state = STREAM_FAILED;
  generator_failed(stream->generator, stream, what, why);
}

// Provides the body: the due bytes that were not sent yet, or a pause.
static size_t read_body(char *into, size_t size, size_t count, void *context) {
  struct stream *stream = context;
  unsigned message = stream->generator->options.message;
  uint64_t pending = (uint64_t)stream->due * message - stream->sent;
  if (pending == 0) {
    if (stream->state != STREAM_LIVE) return 0;
    stream->is_paused = true;
    return CURL_READFUNC_PAUSE;
  }
  size_t space = size * count, taken = pending < space ? (size_t)pending : space;
  memset(into, 'x', taken);
  uint64_t before = stream->sent / message;
  stream->sent += taken;
  for (uint64_t number = before; number < stream->sent / message; number++) generator_sent(stream, (uint32_t)number);
  return taken;
}

static size_t discard_body(char *bytes, size_t size, size_t count, void *context) {
  (void)bytes, (void)context;
  return size * count;
}

// The value of a field if the line has this name. It ends at the end of the line.
static const char *value(const char *line, const char *end, const char *name) {
  size_t length = strlen(name);
  if ((size_t)(end - line) <= length || line[length] != ':' || strncasecmp(line, name, length) != 0) return NULL;
  for (line += length + 1; line < end && (*line == ' ' || *line == '\t'); line++) continue;
  return line;
}

static size_t read_head(char *line, size_t size, size_t count, void *context) {
  struct stream *stream = context;
  const char *end = line + size * count, *found;
  if (end - line >= 12 && memcmp(line, "HTTP/1.1 ", 9) == 0) {
    stream->status = (uint16_t)((line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0'));
  } else if (stream->status != 104 && stream->status / 100 != 2) {
    return size * count;
  } else if ((found = value(line, end, "upload-offset"))) {
    uint64_t offset = 0;
    for (; found < end && *found >= '0' && *found <= '9'; found++) offset = offset * 10 + (uint64_t)(*found - '0');
    if (offset > stream->sent) {
      fprintf(stderr, "libcurl-load: %llu bytes are acknowledged, but %llu were sent\n", (unsigned long long)offset,
              (unsigned long long)stream->sent);
      return 0;  // ends the transfer
    }
    unsigned message = stream->generator->options.message;
    for (; (uint64_t)(stream->acknowledged + 1) * message <= offset; stream->acknowledged++) {
      generator_acknowledged(stream, stream->acknowledged);
    }
  } else if (stream->state == STREAM_CREATING && (found = value(line, end, "location"))) {
    while (end > found && (end[-1] == '\r' || end[-1] == '\n')) end--;
    free(stream->location);
    stream->location = strndup(found, (size_t)(end - found));
  }
  return size * count;
}

static void start_request(struct stream *stream) {
  stream->status = 0;
  stream->is_paused = false;
  // libcurl rejects a handle that is in no multi handle only if memory is exhausted.
  if (curl_multi_add_handle(stream->generator->multi, stream->easy) != CURLM_OK) abort();
}

static void put(struct stream *stream, unsigned number) {
  char url[2048];
  snprintf(url, sizeof url, "%s-%u", stream->generator->options.url, number);
  SET(CURLOPT_URL, url);
  SET(CURLOPT_UPLOAD, 1L);
  SET(CURLOPT_HTTPHEADER, stream->generator->plain_fields);
  stream->state = STREAM_LIVE;
  start_request(stream);
  generator_is_live(stream->generator);
}

void stream_begin(struct stream *stream) {
  struct generator *generator = stream->generator;
  if (!(stream->easy = curl_easy_init())) abort();
  unsigned number = (unsigned)(stream - generator->streams);
  char address[32];
  // With "host!", libcurl does not search for an interface of this name.
  snprintf(address, sizeof address, "host!127.0.0.%u", 2 + number % generator->options.addresses);
  SET(CURLOPT_INTERFACE, address);
  SET(CURLOPT_PRIVATE, stream);
  SET(CURLOPT_NOSIGNAL, 1L);
  SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
  SET(CURLOPT_UPLOAD_BUFFERSIZE, (long)UPLOAD_BUFFER);
  SET(CURLOPT_BUFFERSIZE, (long)RECEIVE_BUFFER);
  SET(CURLOPT_READFUNCTION, read_body);
  SET(CURLOPT_READDATA, stream);
  SET(CURLOPT_WRITEFUNCTION, discard_body);
  SET(CURLOPT_HEADERFUNCTION, read_head);
  SET(CURLOPT_HEADERDATA, stream);
  if (generator->options.is_plain) return put(stream, number);
  SET(CURLOPT_URL, generator->options.url);
  SET(CURLOPT_HTTPHEADER, generator->creation_fields);
  SET(CURLOPT_POSTFIELDS, "");
  SET(CURLOPT_POSTFIELDSIZE, 0L);
  stream->state = STREAM_CREATING;
  start_request(stream);
}

// Resolves the URL of the upload resource: the response's Location, relative to the requested URL.
static bool resolve(struct stream *stream) {
  CURLU *url = curl_url();
  char *resolved = NULL;
  bool is_good = url && curl_url_set(url, CURLUPART_URL, stream->generator->options.url, 0) == CURLUE_OK &&
                 curl_url_set(url, CURLUPART_URL, stream->location, 0) == CURLUE_OK &&
                 curl_url_get(url, CURLUPART_URL, &resolved, 0) == CURLUE_OK;
  if (is_good) SET(CURLOPT_URL, resolved);
  curl_free(resolved);
  curl_url_cleanup(url);
  free(stream->location);
  stream->location = NULL;
  return is_good;
}

static void append(struct stream *stream) {
  if (!stream->location || !resolve(stream)) return fail(stream, "creating an upload", "the Location is invalid");
  // An upload with another method name, which is how libcurl sends a chunked body with any method.
  SET(CURLOPT_UPLOAD, 1L);
  SET(CURLOPT_CUSTOMREQUEST, "PATCH");
  SET(CURLOPT_HTTPHEADER, stream->generator->append_fields);
  stream->state = STREAM_LIVE;
  start_request(stream);
  generator_is_live(stream->generator);
}

static void complete(struct stream *stream) {
  char offset[48];
  snprintf(offset, sizeof offset, "Upload-Offset: %llu", (unsigned long long)stream->sent);
  static const char *const fields[] = {"Expect:", "Upload-Draft-Interop-Version: 8", "Upload-Complete: ?1",
                                       "Content-Type: application/partial-upload", NULL};
  for (const char *const *field = fields; *field; field++) stream->fields = curl_slist_append(stream->fields, *field);
  stream->fields = curl_slist_append(stream->fields, offset);
  SET(CURLOPT_HTTPHEADER, stream->fields);
  SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)0);
  stream->state = STREAM_COMPLETING;
  start_request(stream);
}

void stream_push(struct stream *stream) {
  stream->due += 1;
  // If it is not paused, libcurl waits for its socket, and sends this message after the earlier ones.
  if (!stream->is_paused) return;
  stream->is_paused = false;
  curl_easy_pause(stream->easy, CURLPAUSE_CONT);
  // libcurl sends immediately when it learns that the socket is writable. Repeat this until it finds nothing to send
  // and pauses. Otherwise epoll would begin and stop watching for "writable" for each message.
  for (int round = 0; round < SENDS_IN_A_ROW && stream->socket >= 0; round++) {
    uint64_t before = stream->sent;
    generator_drive(stream->generator, stream->socket, CURL_CSELECT_OUT);
    if (stream->is_paused || stream->sent == before) break;
  }
}

void stream_end(struct stream *stream) {
  if (stream->state != STREAM_LIVE) return;
  stream->state = STREAM_ENDING;
  if (!stream->is_paused) return;
  stream->is_paused = false;
  curl_easy_pause(stream->easy, CURLPAUSE_CONT);
}

void stream_request_ended(struct stream *stream, CURLcode code) {
  curl_multi_remove_handle(stream->generator->multi, stream->easy);
  static const char *const doing[] = {
      [STREAM_CREATING] = "creating an upload", [STREAM_LIVE] = "appending", [STREAM_ENDING] = "ending an append",
      [STREAM_COMPLETING] = "completing an upload"};
  const char *what = doing[stream->state];
  char status[32];
  snprintf(status, sizeof status, "status %u", stream->status);
  if (code != CURLE_OK) {
    fail(stream, what, curl_easy_strerror(code));
  } else if (stream->status / 100 != 2 || stream->state == STREAM_LIVE) {
    fail(stream, what, status);
  } else if (stream->state == STREAM_CREATING) {
    append(stream);
  } else if (stream->state == STREAM_ENDING && !stream->generator->options.is_plain) {
    complete(stream);
  } else {
    stream->state = STREAM_DONE;
  }
  if (stream->state < STREAM_DONE) return;
  curl_easy_cleanup(stream->easy);
  curl_slist_free_all(stream->fields);
  stream->easy = NULL;
  stream->fields = NULL;
  generator_is_over(stream->generator);
}
