#include "histogram.h"

#include <math.h>
#include <stdio.h>

// The number of a class: its doubling above the first microseconds, and its step within the doubling.
static unsigned class_of(uint64_t microseconds) {
  // Each number of microseconds below HISTOGRAM_STEPS has its own class.
  if (microseconds < HISTOGRAM_STEPS) return (unsigned)microseconds;
  unsigned top = 63 - (unsigned)__builtin_clzll(microseconds);
  unsigned shift = top - 6;
  unsigned number = (shift + 1) * HISTOGRAM_STEPS + (unsigned)(microseconds >> shift) - HISTOGRAM_STEPS;
  unsigned last = HISTOGRAM_DOUBLINGS * HISTOGRAM_STEPS - 1;
  return number < last ? number : last;
}

static double middle_of(unsigned number) {
  unsigned doubling = number / HISTOGRAM_STEPS, step = number % HISTOGRAM_STEPS;
  if (doubling == 0) return step + 0.5;
  return ldexp(HISTOGRAM_STEPS + step + 0.5, (int)doubling - 1);
}

void histogram_record(struct histogram *histogram, int64_t nanoseconds) {
  if (nanoseconds < 0) nanoseconds = 0;
  if (histogram->count == 0 || nanoseconds < histogram->least) histogram->least = nanoseconds;
  if (nanoseconds > histogram->most) histogram->most = nanoseconds;
  histogram->count += 1;
  histogram->sum += (double)nanoseconds;
  histogram->classes[class_of((uint64_t)nanoseconds / 1000)] += 1;
}

double histogram_quantile(const struct histogram *histogram, double share) {
  if (histogram->count == 0) return 0;
  uint64_t rank = (uint64_t)ceil(share * (double)histogram->count), seen = 0;
  if (rank == 0) rank = 1;
  for (unsigned number = 0; number < HISTOGRAM_DOUBLINGS * HISTOGRAM_STEPS; number++) {
    seen += histogram->classes[number];
    if (seen < rank) continue;
    double found = middle_of(number) * 1000;
    return fmin(fmax(found, (double)histogram->least), (double)histogram->most);
  }
  return (double)histogram->most;
}

void histogram_print(const struct histogram *histogram, const char *name) {
  double mean = histogram->count ? histogram->sum / (double)histogram->count : 0;
  printf("\"%s\": {\"count\": %llu, \"mean\": %.3f, ", name, (unsigned long long)histogram->count, mean / 1e6);
  printf("\"p50\": %.3f, \"p90\": %.3f, ", histogram_quantile(histogram, 0.5) / 1e6,
         histogram_quantile(histogram, 0.9) / 1e6);
  printf("\"p99\": %.3f, \"max\": %.3f}", histogram_quantile(histogram, 0.99) / 1e6, (double)histogram->most / 1e6);
}
