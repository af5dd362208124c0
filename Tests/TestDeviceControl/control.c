// Giving the test microphone its orders, and reading the truth from it.
#include "testmic_control.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)
#define ADD(field, value) __atomic_add_fetch(&(field), (value), __ATOMIC_ACQ_REL)

struct testmic_page *testmic_map(const char *path) {
  int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) return NULL;
  struct stat status;
  struct testmic_page *page = MAP_FAILED;
  // Growing a file to a size that it has already changes nothing, so two processes may do this at the same time.
  if (fstat(descriptor, &status) == 0 &&
      (status.st_size >= (off_t)sizeof *page || ftruncate(descriptor, sizeof *page) == 0))
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  int failure = errno;
  close(descriptor);
  if (page == MAP_FAILED) {
    errno = failure;
    return NULL;
  }
  if (LOAD(page->magic) == 0) {
    STORE(page->version, TESTMIC_VERSION);
    STORE(page->magic, TESTMIC_MAGIC);
  } else if (LOAD(page->magic) != TESTMIC_MAGIC || LOAD(page->version) != TESTMIC_VERSION) {
    munmap(page, sizeof *page);
    errno = EINVAL;
    return NULL;
  }
  return page;
}

void testmic_unmap(struct testmic_page *page) { munmap(page, sizeof *page); }

void testmic_set_absent(struct testmic_page *page, bool absent) { STORE(page->absent, absent); }
void testmic_set_busy(struct testmic_page *page, bool busy) { STORE(page->busy, busy); }
void testmic_set_suspended(struct testmic_page *page, bool suspended) { STORE(page->suspended, suspended); }
void testmic_set_silent(struct testmic_page *page, bool silent, bool awake) {
  STORE(page->silent, silent ? (awake ? 2 : 1) : 0);
}
void testmic_set_resume_refused(struct testmic_page *page, bool refused) { STORE(page->resume_refused, refused); }

void testmic_order_overrun(struct testmic_page *page, uint64_t milliseconds) {
  STORE(page->overrun_ns, milliseconds * 1000000);
  ADD(page->overruns, 1);
}

void testmic_order_overrun_in_read(struct testmic_page *page, uint64_t milliseconds) {
  STORE(page->overrun_ns, milliseconds * 1000000);
  ADD(page->read_overruns, 1);
}

void testmic_order_spurious_wake(struct testmic_page *page) { ADD(page->spurious_wakes, 1); }

void testmic_order_short_read(struct testmic_page *page, uint32_t frames) {
  STORE(page->short_read_frames, frames);
  ADD(page->short_reads, 1);
}

void testmic_order_read_failures(struct testmic_page *page, uint32_t times, int32_t code) {
  STORE(page->read_failure_code, (uint32_t)code);
  ADD(page->read_failures, times);
}

void testmic_set_start_delay(struct testmic_page *page, uint64_t milliseconds) {
  STORE(page->start_delay_ns, milliseconds * 1000000);
}

int64_t testmic_t0_ns(const struct testmic_page *page) { return LOAD(page->t0_ns); }
uint64_t testmic_frames_delivered(const struct testmic_page *page) { return LOAD(page->frames_delivered); }
uint64_t testmic_frames_lost(const struct testmic_page *page) { return LOAD(page->frames_lost); }
uint64_t testmic_frames_overwritten(const struct testmic_page *page) { return LOAD(page->frames_overwritten); }
uint32_t testmic_opens(const struct testmic_page *page) { return LOAD(page->opens); }
uint32_t testmic_prepares(const struct testmic_page *page) { return LOAD(page->prepares); }
uint32_t testmic_starts(const struct testmic_page *page) { return LOAD(page->starts); }
uint32_t testmic_xruns(const struct testmic_page *page) { return LOAD(page->xruns); }

uint64_t testmic_unread_frames(const struct testmic_page *page) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t elapsed = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - LOAD(page->t0_ns);
  uint64_t produced = (uint64_t)((unsigned __int128)elapsed * LOAD(page->rate) / 1000000000);
  uint64_t read = LOAD(page->next_frame);
  return produced > read ? produced - read : 0;
}

uint32_t testmic_orders_pending(const struct testmic_page *page) {
  return (LOAD(page->overruns) - LOAD(page->overruns_done)) +
         (LOAD(page->read_overruns) - LOAD(page->read_overruns_done)) +
         (LOAD(page->spurious_wakes) - LOAD(page->spurious_wakes_done)) +
         (LOAD(page->short_reads) - LOAD(page->short_reads_done)) +
         (LOAD(page->read_failures) - LOAD(page->read_failures_done));
}

uint32_t testmic_gap_count(const struct testmic_page *page) { return LOAD(page->gap_count); }

struct testmic_gap testmic_gap_at(const struct testmic_page *page, uint32_t index) {
  return page->gaps[index < TESTMIC_GAPS ? index : TESTMIC_GAPS - 1];
}
