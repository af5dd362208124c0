#define _GNU_SOURCE
#include "framing.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST_HEAD = 16 * 1024 };

// The value of a field in a head that ends with NUL, or NULL if the head lacks the field.
static const char *field(const char *head, const char *name) {
  const char *found = strcasestr(head, name);
  return found ? found + strlen(name) : NULL;
}

static enum framing_event begin(struct framing *framing, const char *head) {
  const char *length = field(head, "\r\nContent-Length:"), *coding = field(head, "\r\nTransfer-Encoding:");
  framing->wants_continue = field(head, "\r\nExpect:") != NULL;
  framing->left = 0;
  framing->state = FRAMING_LENGTH;
  if (coding) {
    framing->state = FRAMING_CHUNK_SIZE;
  } else if (length) {
    framing->left = strtoull(length, NULL, 10);
  }
  return FRAMING_BEGAN;
}

static enum framing_event take_head(struct framing *framing, const char *bytes, size_t count, size_t *taken) {
  if (framing->head_length + count > LONGEST_HEAD) count = LONGEST_HEAD - framing->head_length;
  if (count == 0) return FRAMING_BAD;
  char *head = realloc(framing->head, framing->head_length + count + 1);
  if (!head) abort();
  memcpy(head + framing->head_length, bytes, count);
  head[framing->head_length + count] = '\0';
  char *end = strstr(head, "\r\n\r\n");
  if (!end) {
    framing->head = head;
    framing->head_length += (uint32_t)count;
    *taken = count;
    return FRAMING_NEEDS_MORE;
  }
  *taken = (size_t)(end - head) + 4 - framing->head_length;
  end[2] = '\0';
  enum framing_event event = begin(framing, head);
  free(head);
  framing->head = NULL;
  framing->head_length = 0;
  return event;
}

static int digit(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  letter |= 0x20;
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

// Processes one character between chunks. Returns FRAMING_ENDED at the end of the trailer.
static enum framing_event take_line(struct framing *framing, char letter) {
  if (letter == '\n') {
    bool is_last = framing->state == FRAMING_CHUNK_SIZE && framing->left == 0;
    bool is_over = framing->state == FRAMING_TRAILER && framing->line_is_empty;
    framing->line_is_empty = true;
    if (is_over) return FRAMING_ENDED;
    if (framing->state == FRAMING_CHUNK_END) framing->state = FRAMING_CHUNK_SIZE;
    else if (framing->state == FRAMING_CHUNK_SIZE) framing->state = is_last ? FRAMING_TRAILER : FRAMING_CHUNK;
    return FRAMING_NEEDS_MORE;
  }
  if (letter == '\r') return FRAMING_NEEDS_MORE;
  if (framing->state == FRAMING_CHUNK_SIZE) {
    if (digit(letter) < 0) return FRAMING_BAD;  // no program here sends chunk extensions
    framing->left = framing->left << 4 | (uint64_t)digit(letter);
  }
  framing->line_is_empty = false;
  return FRAMING_NEEDS_MORE;
}

enum framing_event framing_feed(struct framing *framing, const char *bytes, size_t count, size_t *taken, size_t *body) {
  *taken = *body = 0;
  if (framing->state == FRAMING_HEAD) return take_head(framing, bytes, count, taken);
  while (framing->state != FRAMING_LENGTH || framing->left > 0) {
    if (*taken == count) return FRAMING_NEEDS_MORE;
    if (framing->state == FRAMING_LENGTH || framing->state == FRAMING_CHUNK) {
      size_t part = count - *taken < framing->left ? count - *taken : (size_t)framing->left;
      *taken += part;
      *body += part;
      framing->left -= part;
      if (framing->state == FRAMING_CHUNK && framing->left == 0) framing->state = FRAMING_CHUNK_END;
      continue;
    }
    enum framing_event event = take_line(framing, bytes[(*taken)++]);
    if (event == FRAMING_BAD) return event;
    if (event == FRAMING_ENDED) break;
  }
  framing->state = FRAMING_HEAD;
  return FRAMING_ENDED;
}
