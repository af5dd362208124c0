// The options of a run, from the command line.

#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct options {
  const char *url;
  unsigned streams;
  unsigned message;     // bytes
  int64_t period;       // ns from one message of a stream to its next
  int64_t duration;     // ns of the measurement, which begins when all streams are open
  int64_t ramp;         // ns during which the streams begin
  int64_t tick;         // ns. Messages that become due within one tick are sent together
  bool is_plain;        // one PUT per stream to URL-NUMBER, without acknowledgements before its end
  unsigned addresses;   // the number of source addresses, from 127.0.0.2 on
};

// If the command line is invalid, this prints a message to standard error and exits with 64.
struct options options_parse(int count, char **words);

#endif
