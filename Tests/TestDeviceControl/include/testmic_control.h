// The shared page through which a test gives the test microphone its orders and reads what really happened.
//
// The device maps the file that its configuration names (`control "/path"`) and reads it in each of its calls, so an
// order costs the device one load. The writer of orders maps the same file, in the same process or another.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { TESTMIC_MAGIC = 0x746d6963, TESTMIC_VERSION = 5, TESTMIC_GAPS = 128 };

/// One run of frames that the device produced and nobody was given.
struct testmic_gap {
  uint64_t first_frame;  ///< device frame, counted from the first start
  uint64_t frames;
};

/// The page. All fields are accessed atomically (see testmic_control.c); none wraps in practice.
struct testmic_page {
  uint32_t magic, version;

  // Orders. The flags hold as long as they are set; the counters are obeyed once for each increment.
  uint32_t absent;          ///< every call fails with ENODEV, opening too
  uint32_t busy;            ///< opening fails with EBUSY
  uint32_t suspended;       ///< ESTRPIPE until cleared; device time continues, frames are lost
  uint32_t silent;          ///< no frame comes, and no error; the reader is not woken, or (2) all the time
  uint32_t resume_refused;  ///< after a suspend only prepare helps (snd_pcm_resume changes nothing)
  uint32_t overruns;        ///< hold the reader until the ring has overflowed by `overrun_ns`
  uint64_t overrun_ns;
  uint32_t read_overruns;   ///< the same in the middle of a read, after the reader has looked at the pointer
  uint32_t spurious_wakes;  ///< make the descriptor ready with no new frame
  uint32_t short_reads;     ///< give the next read at most `short_read_frames`
  uint32_t short_read_frames;
  uint32_t read_failures;   ///< let the next read fail with errno `read_failure_code`
  uint32_t read_failure_code;
  uint64_t start_delay_ns;  ///< prepare takes so long; 0: no time

  // What the device did with the counters above.
  uint32_t overruns_done, read_overruns_done, spurious_wakes_done, short_reads_done, read_failures_done;

  // The truth.
  uint32_t rate;               ///< frames per second of the last start
  int64_t t0_ns;               ///< CLOCK_MONOTONIC of device frame 0; 0 before the first start
  uint64_t next_frame;         ///< the frame after the last one that was handed out
  uint64_t frames_delivered;   ///< in all
  uint64_t frames_lost;        ///< in all: the sum of the gaps
  uint64_t frames_overwritten; ///< handed out although the ring had overwritten them: the reader's mistake
  uint32_t opens, prepares, starts, xruns;
  uint32_t gap_count;          ///< may exceed TESTMIC_GAPS: only that many are listed
  struct testmic_gap gaps[TESTMIC_GAPS];
};

/// Maps the control file, made (mode 0600) if it is not there. NULL with `errno` set on failure.
struct testmic_page *testmic_map(const char *path);
void testmic_unmap(struct testmic_page *page);

// Orders; each from any thread or process.
void testmic_set_absent(struct testmic_page *page, bool absent);
void testmic_set_busy(struct testmic_page *page, bool busy);
void testmic_set_suspended(struct testmic_page *page, bool suspended);
void testmic_set_silent(struct testmic_page *page, bool silent, bool awake);
void testmic_set_resume_refused(struct testmic_page *page, bool refused);
void testmic_order_overrun(struct testmic_page *page, uint64_t milliseconds);
void testmic_order_overrun_in_read(struct testmic_page *page, uint64_t milliseconds);
void testmic_order_spurious_wake(struct testmic_page *page);
void testmic_order_short_read(struct testmic_page *page, uint32_t frames);
/// The next `times` reads fail with errno `code`. Each reports this through libasound, which prints it unless the
/// reader asks for it.
void testmic_order_read_failures(struct testmic_page *page, uint32_t times, int32_t code);
void testmic_set_start_delay(struct testmic_page *page, uint64_t milliseconds);

// The truth, readable at any time.
int64_t testmic_t0_ns(const struct testmic_page *page);
uint64_t testmic_frames_delivered(const struct testmic_page *page);
uint64_t testmic_frames_lost(const struct testmic_page *page);
uint64_t testmic_frames_overwritten(const struct testmic_page *page);
uint32_t testmic_opens(const struct testmic_page *page);
/// Calls of prepare, those that failed included.
uint32_t testmic_prepares(const struct testmic_page *page);
uint32_t testmic_starts(const struct testmic_page *page);
uint32_t testmic_xruns(const struct testmic_page *page);
/// Frames that the device has produced and nobody has read, in its ring or overwritten.
uint64_t testmic_unread_frames(const struct testmic_page *page);
/// Orders not yet carried out.
uint32_t testmic_orders_pending(const struct testmic_page *page);
uint32_t testmic_gap_count(const struct testmic_page *page);
/// Gap `index` (0 … min(gap_count, TESTMIC_GAPS) − 1).
struct testmic_gap testmic_gap_at(const struct testmic_page *page, uint32_t index);
