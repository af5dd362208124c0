// Stores thousands of millions of delays in a few kilobytes, in log-linear classes.

#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdint.h>

enum {
  // The number of classes per doubling. The middle of a class differs from a recorded value by at most 1/128.
  HISTOGRAM_STEPS = 64,
  HISTOGRAM_DOUBLINGS = 36,  // from 1 µs to nineteen hours
};

struct histogram {
  uint64_t count;
  int64_t least;
  int64_t most;
  double sum;
  uint32_t classes[HISTOGRAM_DOUBLINGS * HISTOGRAM_STEPS];
};

// Records a number of nanoseconds. A value below a microsecond counts as one microsecond.
void histogram_record(struct histogram *histogram, int64_t nanoseconds);

// The number of nanoseconds that a share (0...1) of the recorded values does not exceed. 0 if nothing was recorded.
double histogram_quantile(const struct histogram *histogram, double share);

// Prints a member of a JSON object: "name": {"count": …, "p50": …}, in milliseconds.
void histogram_print(const struct histogram *histogram, const char *name);

#endif
