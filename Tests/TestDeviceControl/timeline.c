// Which frame of the test microphone a stored sample is.
#include "testmic_timeline.h"

#include "testmic_signal.h"

size_t testmic_matching(const int16_t *samples, size_t count, uint64_t seed, uint64_t frame) {
  size_t at = 0;
  while (at < count) {
    uint64_t word = testmic_word(seed, frame >> 2, 0) >> (16 * (frame & 3));
    for (unsigned left = 4 - (frame & 3); left > 0 && at < count; left--, at++, frame++, word >>= 16)
      if (samples[at] != (int16_t)(uint16_t)word) return at;
  }
  return at;
}

size_t testmic_silent(const int16_t *samples, size_t count) {
  size_t at = 0;
  while (at < count && samples[at] == 0) at++;
  return at;
}

/// The inverse of testmic_mix.
static uint64_t unmix(uint64_t word) {
  word = word ^ (word >> 31) ^ (word >> 62);
  word *= 0x319642b2d24d8ec3ULL;
  word = word ^ (word >> 27) ^ (word >> 54);
  word *= 0x96de1b173f119089ULL;
  return word ^ (word >> 30) ^ (word >> 60);
}

bool testmic_locate(const int16_t *samples, uint64_t seed, uint64_t *frame) {
  for (unsigned start = 0; start < 4; start++) {
    uint64_t word = 0;
    for (unsigned i = 0; i < 4; i++) word |= (uint64_t)(uint16_t)samples[start + i] << (16 * i);
    uint64_t packed = unmix(word) - seed * 0x9e3779b97f4a7c15ULL;
    uint64_t found = (packed >> 3) * 4 - start;
    if (packed & 7 || packed >> 60 || found > UINT64_MAX / 2) continue;
    if (testmic_matching(samples, TESTMIC_LOCATE, seed, found) != TESTMIC_LOCATE) continue;
    *frame = found;
    return true;
  }
  return false;
}
