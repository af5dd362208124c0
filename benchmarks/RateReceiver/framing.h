// Finds the beginning and the end of a request's body (RFC 9112, sections 6 and 7), and counts its bytes. Stores none.

#ifndef FRAMING_H
#define FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum framing_state {
  FRAMING_HEAD,
  FRAMING_LENGTH,      // a body with Content-Length
  FRAMING_CHUNK_SIZE,  // the size line of a chunk
  FRAMING_CHUNK,       // the bytes of a chunk
  FRAMING_CHUNK_END,   // the line end after them
  FRAMING_TRAILER,     // up to the empty line
};

enum framing_event {
  FRAMING_NEEDS_MORE,
  FRAMING_BEGAN,  // a head is complete
  FRAMING_ENDED,  // the body is complete
  FRAMING_BAD,
};

struct framing {
  char *head;          // the part that has arrived, if it did not arrive at once
  uint64_t left;       // missing bytes of the body or of the chunk
  uint32_t head_length;
  uint8_t state;
  bool line_is_empty;
  bool wants_continue;  // Expect: 100-continue
};

// Processes bytes up to the next event. `taken` is their number, and `body` is the number of body bytes among them.
enum framing_event framing_feed(struct framing *framing, const char *bytes, size_t count, size_t *taken, size_t *body);

#endif
