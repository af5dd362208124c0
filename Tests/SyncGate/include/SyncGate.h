// Replaces fdatasync(2), fsync(2) of files, renameat2(2), openat(2), readdir(3) and fstatat(2) to simulate a disk that
// is slow or fails.
// So a test can check that bytes are reported only after they are on the disk.
#pragma once

#include "disk_faults.h"
#include "own_mounts.h"

/// From here on, syncs of files wait, whoever calls them.
void sync_gate_close(void);
/// Lets all that wait continue, and those to come.
void sync_gate_open(void);
/// How many calls there were, those that wait included.
unsigned long sync_gate_calls(void);
/// Makes every call fail with that errno; 0 ends it.
void sync_gate_fail(int error);
/// Makes one call fail with that errno, after this number of calls that do not.
void sync_gate_fail_once(int error, unsigned long after);
/// Whether that call has come.
int sync_gate_has_failed(void);

/// Makes every renameat2(2) fail with that errno; 0 ends it.
void rename_gate_fail(int error);

/// Makes every openat(2) of a path that ends like this fail with that errno; 0 ends it. At most 63 bytes.
void open_gate_fail(int error, const char *ending);
/// How often it has failed.
unsigned long open_gate_failures(void);
/// Makes every openat(2) of a path that ends like this take this number of microseconds longer; 0 ends it.
void open_gate_delay(unsigned microseconds, const char *ending);
/// How often it has.
unsigned long open_gate_delays(void);
/// From here on openat(2) and unlinkat(2) of a path that ends like this wait, whoever calls them.
void open_gate_close(const char *ending);
/// Likewise for openat(2), after this number of such calls.
void open_gate_close_after(const char *ending, unsigned long free);
void open_gate_open(void);
void unlink_gate_close(const char *ending);
void unlink_gate_open(void);
/// How many calls wait there now.
unsigned long open_gate_waiters(void);
unsigned long unlink_gate_waiters(void);
/// Makes unlinkat(2) of paths that end like this fail with that errno; 0 ends it.
void unlink_gate_fail(int error, const char *ending);
unsigned long unlink_gate_failures(void);
/// Makes write(2) and pwrite(2) to files whose path ends like this return 0. Not under ThreadSanitizer.
void write_gate_take_nothing(int takes_nothing, const char *ending);
unsigned long write_gate_failures(void);
/// Makes pread(2), ftruncate(2) and fstatat(2) of files whose path ends like this fail with that errno; 0 ends it.
void read_gate_fail(int error, const char *ending);
void truncate_gate_fail(int error, const char *ending);
void status_gate_fail(int error, const char *ending);
/// How often such a call has failed since.
unsigned long read_gate_failures(void);
unsigned long truncate_gate_failures(void);
unsigned long status_gate_failures(void);
/// Makes readdir(3) in directories whose path ends like this fail with that errno, after this number of names; 0 ends
/// it.
void list_gate_fail(int error, const char *ending, unsigned long after);

/// From here on fstatat(2) waits, whoever calls it.
void status_gate_close(void);
void status_gate_open(void);
/// How many calls wait there now.
unsigned long status_gate_waiters(void);
