// The test microphone: what is known of one open device. See plugin.c for its configuration.
#pragma once

#include <alsa/asoundlib.h>
#include <alsa/pcm_external.h>
#include <alsa/pcm_ioplug.h>
#include <stdbool.h>
#include <stdint.h>

#include "testmic_control.h"

struct device {
  snd_pcm_ioplug_t io;
  struct testmic_page *page;
  int lock;   ///< descriptor that holds the flock: one opener at a time, as with hardware
  int timer;  ///< timerfd, the poll descriptor
  uint64_t seed;
  bool batch;         ///< the pointer moves by whole periods
  bool always_stops;  ///< overflow is an XRUN whatever the stop threshold (USB drivers do this)

  // From the software parameters.
  snd_pcm_uframes_t avail_min, stop_threshold, boundary;

  // While it runs. Positions are in frames since the first start ever ("device frames").
  uint64_t base;      ///< device frame of pointer position 0
  uint64_t position;  ///< last device frame that a pointer call told, exclusive
  bool hold_pointer;  ///< a spurious wake-up is on: the pointer stays until a woken reader has found nothing
  bool woke_reader;   ///< … and the reader was woken
  bool end_read;      ///< a short read is on: the next transfer gives nothing
};

/// CLOCK_MONOTONIC in nanoseconds.
int64_t monotonic_ns(void);
/// The frames that exist at `time_ns`: floor((time − t0) · rate).
uint64_t frames_at(const struct device *device, int64_t time_ns);
/// The frames that the pointer reports at `time_ns`: these, or in batch mode the whole periods among them.
uint64_t head_at(const struct device *device, int64_t time_ns);
/// When frame count `frame` is reached, rounded up to the nanosecond.
int64_t time_of(const struct device *device, uint64_t frame);
/// Arms the timer for the moment when `appl_ptr + avail_min` frames are there, or for now.
void arm_for_period(struct device *device, snd_pcm_uframes_t appl_ptr);
void arm_now(struct device *device);
/// Disconnected or suspended, as ordered. True if the device cannot run.
bool obey_state_orders(struct device *device);

extern const snd_pcm_ioplug_callback_t device_callbacks;
