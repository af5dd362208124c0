// Recognizing the test microphone's frames in what was stored: mono, S16_LE.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// How many of these samples, from the first on, are the device's frames from `frame` on.
size_t testmic_matching(const int16_t *samples, size_t count, uint64_t seed, uint64_t frame);
/// How many of these samples are silent, from the first on.
size_t testmic_silent(const int16_t *samples, size_t count);
enum { TESTMIC_LOCATE = 16 };
/// Which frame of the device the first of TESTMIC_LOCATE samples is; false when these are not the device's.
bool testmic_locate(const int16_t *samples, uint64_t seed, uint64_t *frame);
