// What a run is to do, from the command line.

#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct options {
  const char *url;
  unsigned streams;
  unsigned message;     // bytes
  int64_t period;       // ns from one message of a stream to its next
  int64_t duration;     // ns that are measured, once all streams are open
  int64_t ramp;         // ns over which the streams are begun
  int64_t tick;         // ns: what becomes due within one goes out together
  bool is_plain;        // one PUT a stream, to URL-NUMBER, that nobody acknowledges before its end
  unsigned addresses;   // how many of 127.0.0.2, 127.0.0.3, … the streams come from
};

// Ends the process with 64 and a message on standard error when the command line cannot be followed.
struct options options_parse(int count, char **words);

#endif
