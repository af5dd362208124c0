// Where a request's body begins and ends (RFC 9112, sections 6 and 7), and how much of it has come. Keeps none of it.

#ifndef FRAMING_H
#define FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum framing_state {
  FRAMING_HEAD,
  FRAMING_LENGTH,      // a number of bytes, by Content-Length
  FRAMING_CHUNK_SIZE,  // a chunk's line
  FRAMING_CHUNK,       // its bytes
  FRAMING_CHUNK_END,   // the line feed behind them
  FRAMING_TRAILER,     // up to the empty line
};

enum framing_event {
  FRAMING_NEEDS_MORE,
  FRAMING_BEGAN,  // a head is complete
  FRAMING_ENDED,  // the body is, too
  FRAMING_BAD,
};

struct framing {
  char *head;          // what has come of it, if it did not come at once
  uint64_t left;       // bytes of the body, or of the chunk
  uint32_t head_length;
  uint8_t state;
  bool line_is_empty;
  bool wants_continue;  // Expect: 100-continue
};

// Takes bytes up to the next event. `taken` is how many of them, `body` how many of these are the body's.
enum framing_event framing_feed(struct framing *framing, const char *bytes, size_t count, size_t *taken, size_t *body);

#endif
