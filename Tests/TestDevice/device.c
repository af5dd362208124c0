// The device's running: a ring that fills on CLOCK_MONOTONIC whether anyone reads it or not.
//
// Nothing is stored. Frame n exists from t0 + n / rate on, and its samples are computed when they are read; the ring is
// only the rule that what is more than `buffer_size` old has been overwritten.
#include "device.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "testmic_signal.h"

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)

static struct device *device_of(snd_pcm_ioplug_t *io) { return io->private_data; }

// MARK: Time

int64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

uint64_t frames_at(const struct device *device, int64_t time_ns) {
  int64_t elapsed = time_ns - device->page->t0_ns;
  // 128 bits: nanoseconds times rate would overflow 64 bits after a day at 192 kHz.
  return elapsed <= 0 ? 0 : (uint64_t)((unsigned __int128)elapsed * device->io.rate / 1000000000);
}

uint64_t head_at(const struct device *device, int64_t time_ns) {
  uint64_t frames = frames_at(device, time_ns);
  if (!device->batch || frames < device->base) return frames;
  return frames - (frames - device->base) % device->io.period_size;
}

int64_t time_of(const struct device *device, uint64_t frame) {
  unsigned __int128 ns = (unsigned __int128)frame * 1000000000 + device->io.rate - 1;
  return device->page->t0_ns + (int64_t)(ns / device->io.rate);
}

static void arm_at(struct device *device, int64_t time_ns) {
  struct itimerspec when = {.it_value = {.tv_sec = time_ns / 1000000000, .tv_nsec = time_ns % 1000000000}};
  // Zero would disarm it.
  if (time_ns <= 0) when.it_value.tv_nsec = 1;
  timerfd_settime(device->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

void arm_now(struct device *device) { arm_at(device, 0); }

void arm_for_period(struct device *device, snd_pcm_uframes_t appl_ptr) {
  if (LOAD(device->page->spurious_wakes) != device->page->spurious_wakes_done) {
    device->hold_pointer = true;
    device->woke_reader = false;
    arm_now(device);
    return;
  }
  snd_pcm_uframes_t wanted = device->avail_min ? device->avail_min : device->io.period_size;
  snd_pcm_uframes_t target = appl_ptr + wanted;
  if (device->batch) target += (device->io.period_size - target % device->io.period_size) % device->io.period_size;
  arm_at(device, time_of(device, device->base + target));
}

// MARK: Orders

bool obey_state_orders(struct device *device) {
  if (LOAD(device->page->absent)) {
    snd_pcm_ioplug_set_state(&device->io, SND_PCM_STATE_DISCONNECTED);
    arm_now(device);
    return true;
  }
  if (LOAD(device->page->suspended) && device->io.state == SND_PCM_STATE_RUNNING) {
    snd_pcm_ioplug_set_state(&device->io, SND_PCM_STATE_SUSPENDED);
    arm_now(device);
    return true;
  }
  return false;
}

/// Holds the caller until the ring has overflowed by as much as was ordered. The device's clock never jumps: it is the
/// reader that is late, as when its thread was not scheduled, so time stamps stay true.
static void obey_overrun(struct device *device, const uint32_t *ordered, uint32_t *done) {
  if (LOAD(*ordered) == *done) return;
  uint64_t over = LOAD(device->page->overrun_ns) * device->io.rate / 1000000000;
  uint64_t target = device->base + device->io.appl_ptr + device->io.buffer_size + over;
  int64_t time_ns = time_of(device, target);
  struct timespec when = {.tv_sec = time_ns / 1000000000, .tv_nsec = time_ns % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR) {
  }
  STORE(*done, LOAD(*ordered));
}

// MARK: Callbacks

static int device_start(snd_pcm_ioplug_t *io) {
  struct device *device = device_of(io);
  if (LOAD(device->page->absent)) return -ENODEV;
  int64_t now = monotonic_ns();
  if (device->page->t0_ns == 0 || device->page->rate != io->rate) {
    device->page->rate = io->rate;
    device->page->next_frame = 0;
    STORE(device->page->t0_ns, now);
  }
  // The first frame that begins after this moment.
  device->base = frames_at(device, now);
  if (time_of(device, device->base) < now) device->base += 1;
  device->position = device->base;
  device->hold_pointer = device->woke_reader = false;
  device->end_read = false;
  STORE(device->page->starts, device->page->starts + 1);
  arm_for_period(device, io->appl_ptr);
  return 0;
}

static int device_stop(snd_pcm_ioplug_t *io) {
  arm_now(device_of(io));
  return 0;
}

static snd_pcm_sframes_t device_pointer(snd_pcm_ioplug_t *io) {
  struct device *device = device_of(io);
  if (io->state == SND_PCM_STATE_RUNNING && !obey_state_orders(device)) {
    obey_overrun(device, &device->page->overruns, &device->page->overruns_done);
    if (LOAD(device->page->silent)) {
      // The pointer stays.
    } else if (!device->hold_pointer) {
      uint64_t now = head_at(device, monotonic_ns());
      if (now > device->position) device->position = now;
    } else if (device->woke_reader && device->position - device->base == io->appl_ptr) {
      // Woken, and nothing there: done. What came meanwhile shows at the next look.
      STORE(device->page->spurious_wakes_done, LOAD(device->page->spurious_wakes));
      device->hold_pointer = device->woke_reader = false;
      arm_for_period(device, io->appl_ptr);
    }
    snd_pcm_uframes_t avail = device->position - device->base - io->appl_ptr;
    snd_pcm_uframes_t threshold = device->stop_threshold;
    if (device->always_stops && threshold > io->buffer_size) threshold = io->buffer_size;
    if (avail >= threshold) {
      STORE(device->page->xruns, device->page->xruns + 1);
      arm_now(device);
      return -EPIPE;  // alsa-lib makes this the state XRUN
    }
  } else if (io->state == SND_PCM_STATE_XRUN) {
    return -EPIPE;
  }
  return (snd_pcm_sframes_t)((device->position - device->base) % device->boundary);
}

static void write_sample(char *to, snd_pcm_format_t format, uint64_t seed, uint64_t frame, unsigned channel) {
  int32_t wide = testmic_sample32(seed, frame, channel);
  int16_t narrow = testmic_sample(seed, frame, channel);
  float real = (float)narrow / 32768.0f;
  switch (format) {
    case SND_PCM_FORMAT_S16_LE: memcpy(to, &narrow, 2); break;
    case SND_PCM_FORMAT_S24_3LE: memcpy(to, (char *)&wide + 1, 3); break;
    case SND_PCM_FORMAT_S32_LE: memcpy(to, &wide, 4); break;
    default: memcpy(to, &real, 4); break;
  }
}

/// Writes down what was handed out, and what was passed over.
static void record_delivery(struct testmic_page *page, uint64_t frame, uint64_t count, uint64_t overwritten) {
  if (frame > page->next_frame) {
    uint64_t missing = frame - page->next_frame;
    uint32_t index = page->gap_count;
    if (index < TESTMIC_GAPS) page->gaps[index] = (struct testmic_gap){page->next_frame, missing};
    STORE(page->frames_lost, page->frames_lost + missing);
    STORE(page->gap_count, index + 1);
  }
  // A reader through mmap may look at the same frames twice before it moves on.
  uint64_t known = frame < page->next_frame ? page->next_frame - frame : 0;
  if (known >= count) return;
  STORE(page->next_frame, frame + count);
  STORE(page->frames_overwritten, page->frames_overwritten + overwritten);
  STORE(page->frames_delivered, page->frames_delivered + count - known);
}

static snd_pcm_sframes_t device_transfer(snd_pcm_ioplug_t *io, const snd_pcm_channel_area_t *areas,
                                         snd_pcm_uframes_t offset, snd_pcm_uframes_t size) {
  struct device *device = device_of(io);
  struct testmic_page *page = device->page;
  if (LOAD(page->absent)) return -ENODEV;
  if (device->end_read) {
    device->end_read = false;
    return -EAGAIN;
  }
  if (LOAD(page->read_failures) != page->read_failures_done) {
    STORE(page->read_failures_done, page->read_failures_done + 1);
    SNDERR("the read fails, as ordered");
    return -(snd_pcm_sframes_t)LOAD(page->read_failure_code);
  }
  if (LOAD(page->short_reads) != page->short_reads_done) {
    page->short_reads_done += 1;
    if (size > page->short_read_frames) {
      size = page->short_read_frames;
      device->end_read = true;
    }
  }
  if (LOAD(page->read_overruns) != page->read_overruns_done) {
    obey_overrun(device, &page->read_overruns, &page->read_overruns_done);
    device->position = frames_at(device, monotonic_ns());
  }
  uint64_t first = device->base + io->appl_ptr, head = device->position, overwritten = 0;
  for (unsigned channel = 0; channel < io->channels; channel++) {
    char *to = (char *)areas[channel].addr + (areas[channel].first + offset * areas[channel].step) / 8;
    for (snd_pcm_uframes_t i = 0; i < size; i++, to += areas[channel].step / 8) {
      uint64_t frame = first + i;
      if (frame + io->buffer_size < head) {
        // The ring's cell has been written again since: give what is in it now.
        frame += (head - frame - 1) / io->buffer_size * io->buffer_size;
        if (channel == 0) overwritten += 1;
      }
      write_sample(to, io->format, device->seed, frame, channel);
    }
  }
  record_delivery(page, first, size, overwritten);
  arm_for_period(device, io->appl_ptr + size);
  return (snd_pcm_sframes_t)size;
}

static int device_poll_revents(snd_pcm_ioplug_t *io, struct pollfd *descriptors, unsigned count, unsigned short *revents) {
  struct device *device = device_of(io);
  (void)count;
  *revents = 0;
  if (!(descriptors[0].revents & POLLIN)) return 0;
  if (io->state == SND_PCM_STATE_RUNNING && !obey_state_orders(device)) {
    uint32_t silent = LOAD(device->page->silent);
    if (silent) {
      arm_at(device, silent == 2 ? 0 : monotonic_ns() + 3600000000000);
      *revents = silent == 2 ? POLLIN : 0;
      return 0;
    }
    if (device->hold_pointer) {
      // The spurious wake-up: ready, with no new frame.
      device->woke_reader = true;
      *revents = POLLIN;
      return 0;
    }
    uint64_t there = head_at(device, monotonic_ns()) - device->base;
    if (there >= io->appl_ptr + device->avail_min) {
      *revents = POLLIN;
    } else {
      // The reader skipped ahead (snd_pcm_forward moves its pointer without notifying the plugin): continue to sleep.
      arm_for_period(device, io->appl_ptr);
    }
    return 0;
  }
  switch (io->state) {
    case SND_PCM_STATE_DISCONNECTED: *revents = POLLERR | POLLHUP; break;
    case SND_PCM_STATE_XRUN:
    case SND_PCM_STATE_SUSPENDED: *revents = POLLERR; break;
    default: *revents = POLLIN; break;
  }
  return 0;
}

static int device_sw_params(snd_pcm_ioplug_t *io, snd_pcm_sw_params_t *params) {
  struct device *device = device_of(io);
  snd_pcm_sw_params_get_avail_min(params, &device->avail_min);
  snd_pcm_sw_params_get_stop_threshold(params, &device->stop_threshold);
  snd_pcm_sw_params_get_boundary(params, &device->boundary);
  return 0;
}

static int device_prepare(snd_pcm_ioplug_t *io) {
  struct device *device = device_of(io);
  STORE(device->page->prepares, device->page->prepares + 1);
  if (LOAD(device->page->absent)) return -ENODEV;
  if (LOAD(device->page->suspended)) return -EAGAIN;  // no power yet
  if (io->state == SND_PCM_STATE_RUNNING) return -EBUSY;  // as the kernel
  uint64_t delay_ns = LOAD(device->page->start_delay_ns);
  if (delay_ns > 0) {
    struct timespec delay = {.tv_sec = (time_t)(delay_ns / 1000000000), .tv_nsec = (long)(delay_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &delay, &delay) == EINTR) {
    }
  }
  device->base = device->position = 0;
  return 0;
}

/// alsa-lib hands 0 on to the caller whatever is returned here: a resume that does not help shows in the state only.
static int device_resume(snd_pcm_ioplug_t *io) {
  struct device *device = device_of(io);
  if (io->state != SND_PCM_STATE_SUSPENDED) return 0;
  if (LOAD(device->page->suspended)) return -EAGAIN;
  if (LOAD(device->page->resume_refused)) return -ENOSYS;
  // The pointer continues where it stood, the frames meanwhile are gone.
  uint64_t position = device->position - device->base;
  device->position = head_at(device, monotonic_ns());
  device->base = device->position - position;
  snd_pcm_ioplug_set_state(io, SND_PCM_STATE_RUNNING);
  arm_for_period(device, io->appl_ptr);
  return 0;
}

static int device_delay(snd_pcm_ioplug_t *io, snd_pcm_sframes_t *delay) {
  struct device *device = device_of(io);
  snd_pcm_sframes_t position = device_pointer(io);
  if (position < 0) return (int)position;
  *delay = (snd_pcm_sframes_t)(device->position - device->base - io->appl_ptr);
  return 0;
}

static int device_close(snd_pcm_ioplug_t *io) {
  struct device *device = device_of(io);
  close(device->timer);
  // A child that another thread has just forked has the descriptor until it executes its program.
  flock(device->lock, LOCK_UN);
  close(device->lock);
  testmic_unmap(device->page);
  free(device);
  return 0;
}

const snd_pcm_ioplug_callback_t device_callbacks = {
    .start = device_start,
    .stop = device_stop,
    .pointer = device_pointer,
    .transfer = device_transfer,
    .close = device_close,
    .sw_params = device_sw_params,
    .prepare = device_prepare,
    .resume = device_resume,
    .poll_revents = device_poll_revents,
    .delay = device_delay,
};
