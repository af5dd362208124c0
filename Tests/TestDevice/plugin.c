// The test microphone as ALSA sees it: its configuration, its opening, what it supports.
//
//   pcm_type.testmic { lib "/…/libTestDevice.so" }
//   pcm.mic {
//     type testmic
//     control "/…/mic.control"   # shared page for orders and the truth (testmic_control.h); made if not there
//     seed 1                     # which noise (testmic_signal.h)
//     rates [ 44100 48000 ]      # default: 8000–192000
//     channels [ 2 ]             # default: 1–8
//     formats [ S16_LE ]         # default: S16_LE S24_3LE S32_LE FLOAT_LE
//     buffer_max 24000           # largest buffer in frames, default 4 s at 192 kHz
//     period_min 480             # smallest period in frames, default 1 ms (ffmpeg asks for the smallest there is)
//     batch true                 # frames come by whole periods, at the end of each, as from USB; default: one by one
//     always_stops true          # an overflow is an XRUN whatever the reader's stop threshold
//   }
//
// A capture device with a bounded ring on CLOCK_MONOTONIC. Access is interleaved, by reads or mmap; a period is 1 ms to
// 1 s.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "device.h"

enum { CHOICES = 16, MAXIMUM_BUFFER_FRAMES = 4 * 192000 };

struct settings {
  const char *control;
  long seed, buffer_max, period_min;
  int always_stops, batch;
  unsigned rates[CHOICES], channels[CHOICES], formats[CHOICES];
  unsigned rate_count, channel_count, format_count;
};

/// Reads `[ a b c ]` of whole numbers or format names.
static int read_list(snd_config_t *list, bool formats, unsigned *values, unsigned *count) {
  snd_config_iterator_t i, next;
  *count = 0;
  snd_config_for_each(i, next, list) {
    snd_config_t *entry = snd_config_iterator_entry(i);
    long number;
    const char *word;
    if (*count == CHOICES) return -EINVAL;
    if (formats) {
      if (snd_config_get_string(entry, &word) < 0) return -EINVAL;
      snd_pcm_format_t format = snd_pcm_format_value(word);
      if (format == SND_PCM_FORMAT_UNKNOWN) return -EINVAL;
      values[(*count)++] = (unsigned)format;
    } else {
      if (snd_config_get_integer(entry, &number) < 0 || number <= 0) return -EINVAL;
      values[(*count)++] = (unsigned)number;
    }
  }
  return *count ? 0 : -EINVAL;
}

static int read_settings(snd_config_t *conf, struct settings *settings) {
  snd_config_iterator_t i, next;
  snd_config_for_each(i, next, conf) {
    snd_config_t *entry = snd_config_iterator_entry(i);
    const char *id;
    int err = 0;
    if (snd_config_get_id(entry, &id) < 0) continue;
    if (!strcmp(id, "comment") || !strcmp(id, "type") || !strcmp(id, "hint")) continue;
    if (!strcmp(id, "control")) err = snd_config_get_string(entry, &settings->control);
    else if (!strcmp(id, "seed")) err = snd_config_get_integer(entry, &settings->seed);
    else if (!strcmp(id, "buffer_max")) err = snd_config_get_integer(entry, &settings->buffer_max);
    else if (!strcmp(id, "period_min")) err = snd_config_get_integer(entry, &settings->period_min);
    else if (!strcmp(id, "batch")) err = settings->batch = snd_config_get_bool(entry);
    else if (!strcmp(id, "always_stops")) err = settings->always_stops = snd_config_get_bool(entry);
    else if (!strcmp(id, "rates")) err = read_list(entry, false, settings->rates, &settings->rate_count);
    else if (!strcmp(id, "channels")) err = read_list(entry, false, settings->channels, &settings->channel_count);
    else if (!strcmp(id, "formats")) err = read_list(entry, true, settings->formats, &settings->format_count);
    else err = -EINVAL;
    if (err < 0) {
      SNDERR("testmic: unknown or unreadable field %s", id);
      return -EINVAL;
    }
  }
  if (!settings->control) {
    SNDERR("testmic: a control file is needed: control \"/path\"");
    return -EINVAL;
  }
  return 0;
}

/// A list where one was configured, else a range.
static int constrain(snd_pcm_ioplug_t *io, int what, const unsigned *list, unsigned count, unsigned least, unsigned most) {
  return count ? snd_pcm_ioplug_set_param_list(io, what, count, list)
               : snd_pcm_ioplug_set_param_minmax(io, what, least, most);
}

static int announce_abilities(snd_pcm_ioplug_t *io, const struct settings *settings) {
  // ALSA's converters (plug, rate) read their slave by mmap.
  static const unsigned access[] = {SND_PCM_ACCESS_RW_INTERLEAVED, SND_PCM_ACCESS_MMAP_INTERLEAVED};
  static const unsigned formats[] = {SND_PCM_FORMAT_S16_LE, SND_PCM_FORMAT_S24_3LE, SND_PCM_FORMAT_S32_LE,
                                     SND_PCM_FORMAT_FLOAT_LE};
  unsigned bytes = (unsigned)settings->buffer_max * 8 * 4;
  int err = snd_pcm_ioplug_set_param_list(io, SND_PCM_IOPLUG_HW_ACCESS, 2, access);
  if (err >= 0)
    err = snd_pcm_ioplug_set_param_list(io, SND_PCM_IOPLUG_HW_FORMAT, settings->format_count ? settings->format_count : 4,
                                        settings->format_count ? settings->formats : formats);
  if (err >= 0)
    err = constrain(io, SND_PCM_IOPLUG_HW_CHANNELS, settings->channels, settings->channel_count, 1, 8);
  if (err >= 0) err = constrain(io, SND_PCM_IOPLUG_HW_RATE, settings->rates, settings->rate_count, 8000, 192000);
  // In bytes, as ioplug has it: from 1 ms of the smallest frame at 8 kHz to the whole buffer. A configured least period
  // is meant in frames of 16 bits and the first number of channels.
  unsigned least_frame = 2 * (settings->channel_count ? settings->channels[0] : 1);
  unsigned least_period = settings->period_min > 0 ? (unsigned)settings->period_min * least_frame : 16;
  if (err >= 0) err = snd_pcm_ioplug_set_param_minmax(io, SND_PCM_IOPLUG_HW_PERIOD_BYTES, least_period, bytes / 2);
  if (err >= 0) err = snd_pcm_ioplug_set_param_minmax(io, SND_PCM_IOPLUG_HW_BUFFER_BYTES, 32, bytes);
  if (err >= 0) err = snd_pcm_ioplug_set_param_minmax(io, SND_PCM_IOPLUG_HW_PERIODS, 2, 1024);
  return err;
}

/// Maps the control page and sees whether the device may be opened: there, not busy, nobody else's.
static int attach(struct device *device, const char *control) {
  device->page = testmic_map(control);
  if (!device->page) {
    SNDERR("testmic: cannot use the control file %s: %s", control, strerror(errno));
    return -EIO;
  }
  if (__atomic_load_n(&device->page->absent, __ATOMIC_ACQUIRE)) return -ENODEV;
  if (__atomic_load_n(&device->page->busy, __ATOMIC_ACQUIRE)) return -EBUSY;
  device->lock = open(control, O_RDONLY | O_CLOEXEC);
  if (device->lock < 0) return -errno;
  if (flock(device->lock, LOCK_EX | LOCK_NB) < 0) return -EBUSY;
  device->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  return device->timer < 0 ? -errno : 0;
}

SND_PCM_PLUGIN_DEFINE_FUNC(testmic) {
  (void)root;
  if (stream != SND_PCM_STREAM_CAPTURE) return -EINVAL;
  struct settings settings = {.seed = 1, .buffer_max = MAXIMUM_BUFFER_FRAMES};
  int err = read_settings(conf, &settings);
  if (err < 0) return err;

  struct device *device = calloc(1, sizeof *device);
  if (!device) return -ENOMEM;
  device->lock = device->timer = -1;
  device->seed = (uint64_t)settings.seed;
  device->always_stops = settings.always_stops;
  device->batch = settings.batch;
  err = attach(device, settings.control);
  if (err < 0) goto failed;

  // Until the software parameters come.
  device->boundary = LONG_MAX;
  device->stop_threshold = LONG_MAX;
  device->io.version = SND_PCM_IOPLUG_VERSION;
  device->io.name = "Sluice test microphone";
  device->io.callback = &device_callbacks;
  device->io.private_data = device;
  device->io.flags = SND_PCM_IOPLUG_FLAG_MONOTONIC | SND_PCM_IOPLUG_FLAG_BOUNDARY_WA;
  device->io.poll_fd = device->timer;
  device->io.poll_events = POLLIN;
  err = snd_pcm_ioplug_create(&device->io, name, stream, mode);
  if (err < 0) goto failed;
  err = announce_abilities(&device->io, &settings);
  if (err < 0) {
    // Closes the device by its own callback.
    snd_pcm_ioplug_delete(&device->io);
    return err;
  }
  __atomic_add_fetch(&device->page->opens, 1, __ATOMIC_ACQ_REL);
  *pcmp = device->io.pcm;
  return 0;

failed:
  if (device->timer >= 0) close(device->timer);
  if (device->lock >= 0) close(device->lock);
  if (device->page) testmic_unmap(device->page);
  free(device);
  return err;
}

SND_PCM_PLUGIN_SYMBOL(testmic);
