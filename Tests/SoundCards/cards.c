// See SoundCards.h. Definitions in the program come before libc's, for libasound too.
#define _GNU_SOURCE
#include "SoundCards.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static __thread bool is_plugged;

void sound_cards_plug(void) { is_plugged = true; }
void sound_cards_unplug(void) { is_plugged = false; }

#ifdef SANITIZED
bool sound_cards_work(void) { return false; }
#else
bool sound_cards_work(void) { return true; }

#include <errno.h>
#include <fcntl.h>
#include <linux/types.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <sound/asound.h>

struct device {
  const char *plays, *captures;
};

struct card {
  const char *identifier, *name;
  bool is_locked;
  int device_count;
  struct device devices[3];
};

static const struct card cards[] = {
    [0] = {"SluiceMic", "Test microphone", false, 3, {{"Line out", "Line in"}, {"Digital out", NULL}, {NULL, "Headset"}}},
    [1] = {"Locked", "Not for everybody", true, 1, {{NULL, "Secret"}}},
    [3] = {"Second", "Other microphone", false, 1, {{NULL, "Boom"}}},
};
enum { CARD_COUNT = sizeof cards / sizeof *cards };

/// What stands in the file that takes the place of a control device: which card it is.
struct mark {
  uint64_t magic, card;
};
enum { MAGIC = 0x736f756e64 };

int open(const char *path, int flags, ...) {
  int card;
  char rest;
  if (!is_plugged || sscanf(path, "/dev/snd/controlC%d%c", &card, &rest) != 1) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    // With openat(2), which SyncGate may replace.
    return openat(AT_FDCWD, path, flags, mode);
  }
  if (card < 0 || card >= CARD_COUNT || !cards[card].identifier) {
    errno = ENOENT;
    return -1;
  }
  if (cards[card].is_locked && (flags & O_ACCMODE) != O_RDONLY) {
    errno = EACCES;
    return -1;
  }
  int descriptor = memfd_create("card", MFD_CLOEXEC);
  struct mark mark = {MAGIC, (uint64_t)card};
  if (descriptor >= 0 && write(descriptor, &mark, sizeof mark) == sizeof mark) return descriptor;
  close(descriptor);
  return -1;
}

/// The open(2) of programs whose compiler checks that a required mode is present. libasound has both.
int __open_2(const char *path, int flags) { return open(path, flags); }

static int answer(int number, unsigned long request, void *argument) {
  const struct card *card = &cards[number];
  if (request == SNDRV_CTL_IOCTL_PVERSION) {
    *(int *)argument = SNDRV_CTL_VERSION;
    return 0;
  }
  if (request == SNDRV_CTL_IOCTL_CARD_INFO) {
    struct snd_ctl_card_info *info = argument;
    memset(info, 0, sizeof *info);
    info->card = number;
    strcpy((char *)info->id, card->identifier);
    strcpy((char *)info->driver, "Test");
    strcpy((char *)info->name, card->name);
    return 0;
  }
  if (request == SNDRV_CTL_IOCTL_PCM_NEXT_DEVICE) {
    int *device = argument;
    *device = *device + 1 < card->device_count ? *device + 1 : -1;
    return 0;
  }
  if (request == SNDRV_CTL_IOCTL_PCM_INFO) {
    struct snd_pcm_info *info = argument;
    if (info->device >= (unsigned)card->device_count || info->subdevice != 0) return ENXIO;
    const struct device *device = &card->devices[info->device];
    const char *name = info->stream == SNDRV_PCM_STREAM_CAPTURE ? device->captures : device->plays;
    if (!name) return ENOENT;
    info->card = number;
    strcpy((char *)info->name, name);
    return 0;
  }
  return ENOTTY;
}

int ioctl(int descriptor, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  struct mark mark;
  if (!is_plugged || _IOC_TYPE(request) != 'U' || pread(descriptor, &mark, sizeof mark, 0) != sizeof mark ||
      mark.magic != MAGIC)
    return (int)syscall(SYS_ioctl, descriptor, request, argument);
  errno = answer((int)mark.card, request, argument);
  return errno ? -1 : 0;
}
#endif
