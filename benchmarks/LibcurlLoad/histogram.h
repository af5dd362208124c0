// Delays by the thousand million in a few kilobytes: log-linear classes, 1 % wide at most.

#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdint.h>

enum {
  // Classes to each doubling: their middle is at most 1/128 away from what was recorded.
  HISTOGRAM_STEPS = 64,
  HISTOGRAM_DOUBLINGS = 36,  // from 1 µs on: up to nineteen hours
};

struct histogram {
  uint64_t count;
  int64_t least;
  int64_t most;
  double sum;
  uint32_t classes[HISTOGRAM_DOUBLINGS * HISTOGRAM_STEPS];
};

// Nanoseconds. What is below a microsecond counts as one.
void histogram_record(struct histogram *histogram, int64_t nanoseconds);

// Nanoseconds below or at which the given share (0...1) of what was recorded lies; 0 if nothing was.
double histogram_quantile(const struct histogram *histogram, double share);

// A member of a JSON object: "name": {"count": …, "p50": …}, in milliseconds.
void histogram_print(const struct histogram *histogram, const char *name);

#endif
