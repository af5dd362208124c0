// The settings of a scaled clock: what simulated time is at a moment of real time.
#include "scaled_clock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)

/// The kernel's own clock, whatever the C library's function has become in this process.
static int64_t real_ns(clockid_t clock) {
  struct timespec now;
  syscall(SYS_clock_gettime, clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static struct scaled_clock_page *map(const char *path, int flags) {
  int descriptor = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
  if (descriptor < 0) return NULL;
  struct scaled_clock_page *page = MAP_FAILED;
  if (!flags || ftruncate(descriptor, sizeof *page) == 0)
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  int failure = errno;
  close(descriptor);
  errno = failure;
  return page == MAP_FAILED ? NULL : page;
}

struct scaled_clock_page *scaled_clock_create(const char *path, uint32_t factor) {
  struct scaled_clock_page *page = map(path, O_CREAT);
  if (!page) return NULL;
  page->factor = factor;
  page->real_origin_ns = real_ns(CLOCK_MONOTONIC);
  page->monotonic_ns = page->real_origin_ns;
  page->boottime_ns = real_ns(CLOCK_BOOTTIME);
  page->realtime_ns = real_ns(CLOCK_REALTIME);
  STORE(page->magic, SCALED_CLOCK_MAGIC);
  return page;
}

struct scaled_clock_page *scaled_clock_open(const char *path) {
  struct scaled_clock_page *page = map(path, 0);
  if (page && LOAD(page->magic) != SCALED_CLOCK_MAGIC) {
    munmap(page, sizeof *page);
    errno = EINVAL;
    return NULL;
  }
  return page;
}

void scaled_clock_close(struct scaled_clock_page *page) { munmap(page, sizeof *page); }

int64_t scaled_clock_elapsed_ns(const struct scaled_clock_page *page) {
  return (real_ns(CLOCK_MONOTONIC) - page->real_origin_ns) * page->factor;
}

void scaled_clock_sleep(struct scaled_clock_page *page, int64_t duration_ns) {
  __atomic_add_fetch(&page->slept_ns, duration_ns, __ATOMIC_ACQ_REL);
}

void scaled_clock_slow(struct scaled_clock_page *page) {
  int64_t now = real_ns(CLOCK_MONOTONIC);
  page->real_origin_ns = now - (now - page->real_origin_ns) * page->factor;
  STORE(page->factor, 1);
}

void scaled_clock_step(struct scaled_clock_page *page, int64_t by_ns) {
  uint32_t count = page->step_count;
  if (count == SCALED_CLOCK_STEPS) return;
  int64_t before = count ? page->steps[count - 1].total_ns : 0;
  page->steps[count] = (struct scaled_clock_step){real_ns(CLOCK_MONOTONIC), before + by_ns};
  STORE(page->step_count, count + 1);
}

static int64_t steps_at(const struct scaled_clock_page *page, int64_t real) {
  for (uint32_t index = LOAD(page->step_count); index > 0; index--)
    if (page->steps[index - 1].at_ns <= real) return page->steps[index - 1].total_ns;
  return 0;
}

int64_t scaled_clock_at(const struct scaled_clock_page *page, clockid_t clock, int64_t real) {
  int64_t elapsed = (real - page->real_origin_ns) * page->factor;
  switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE: return page->realtime_ns + elapsed + steps_at(page, real);
    case CLOCK_BOOTTIME: return page->boottime_ns + elapsed;
    default: return page->monotonic_ns + elapsed - LOAD(page->slept_ns);
  }
}
