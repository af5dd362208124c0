// The signal of the test microphone: noise from which each sample's frame of the device can be determined.
//
// Four samples in a row of one channel form one 64-bit word; the word is an invertible scrambling of (frame / 4,
// channel). So any four samples that begin at a multiple of four can be turned back into their frame number at once,
// and a neighbour confirms it. The same function is in benchmarks/live/testmic_signal.py.
#pragma once
#include <stdint.h>

/// Steele, Lea & Flood's SplitMix64 finaliser: a bijection of 64-bit words, so no two groups of four frames are alike.
static inline uint64_t testmic_mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
  return word ^ (word >> 31);
}

/// The four 16-bit samples of `channel` (0–7) in frames 4·group … 4·group+3, the first in the lowest 16 bits.
static inline uint64_t testmic_word(uint64_t seed, uint64_t group, uint32_t channel) {
  // The seed is added after channel and group are packed: still one-to-one for a given seed.
  return testmic_mix(((group << 3) | (channel & 7)) + seed * 0x9e3779b97f4a7c15ULL);
}

/// The sample of `channel` in device frame `frame`, counted from the device's first start: −32768 … 32767.
static inline int16_t testmic_sample(uint64_t seed, uint64_t frame, uint32_t channel) {
  return (int16_t)(uint16_t)(testmic_word(seed, frame >> 2, channel) >> (16 * (frame & 3)));
}

/// The same sample in the wider formats: the 16 bits on top, their complement below, so that a format that
/// loses or swaps its low bytes is noticed. S24_3LE is this without its lowest byte; FLOAT_LE is `testmic_sample` /
/// 32768.
static inline int32_t testmic_sample32(uint64_t seed, uint64_t frame, uint32_t channel) {
  uint16_t high = (uint16_t)testmic_sample(seed, frame, channel);
  return (int32_t)(((uint32_t)high << 16) | (uint16_t)~high);
}
