#define _GNU_SOURCE
#include "SyncGate.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "faults.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int closed;
static int failure;
static int single_failure;
static unsigned long calls_before_failure;
static unsigned long calls;
static int status_closed;
static unsigned long status_waiters;

// Waits with the mutex until the gate opens. A test that fails leaves its gate closed, and the server that it started
// would wait forever when it is dropped. So a gate that no test opens in this time opens itself.
static void wait_at(int *gate) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 120;
  while (*gate) {
    if (pthread_cond_timedwait(&changed, &mutex, &end) == ETIMEDOUT) *gate = 0;
  }
}

void sync_gate_close(void) {
  pthread_mutex_lock(&mutex);
  closed = 1;
  pthread_mutex_unlock(&mutex);
}

void sync_gate_open(void) {
  pthread_mutex_lock(&mutex);
  closed = 0;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

unsigned long sync_gate_calls(void) {
  pthread_mutex_lock(&mutex);
  unsigned long count = calls;
  pthread_mutex_unlock(&mutex);
  return count;
}

void sync_gate_fail(int error) {
  pthread_mutex_lock(&mutex);
  failure = error;
  pthread_mutex_unlock(&mutex);
}

void sync_gate_fail_once(int error, unsigned long after) {
  pthread_mutex_lock(&mutex);
  single_failure = error;
  calls_before_failure = after;
  pthread_mutex_unlock(&mutex);
}

int sync_gate_has_failed(void) {
  pthread_mutex_lock(&mutex);
  int failed = single_failure == 0;
  pthread_mutex_unlock(&mutex);
  return failed;
}

static int sync_with(long call, int descriptor, int error) {
  unsigned long moment = disk_sync_begins();
  if (error == 0) error = disk_fault(DISK_SYNC, descriptor, NULL);
  if (error == 0 && syscall(call, descriptor) != 0) error = errno;
  if (error != EINTR) disk_synced(descriptor, moment, error != 0, 0);
  errno = error;
  return error ? -1 : 0;
}

static int sync_bytes(long call, int descriptor) {
  pthread_mutex_lock(&mutex);
  calls++;
  wait_at(&closed);
  int error = failure;
  if (single_failure != 0 && calls_before_failure-- == 0) {
    error = single_failure;
    single_failure = 0;
  }
  pthread_mutex_unlock(&mutex);
  return sync_with(call, descriptor, error);
}

// The linker takes these before glibc's.
int fdatasync(int descriptor) { return sync_bytes(SYS_fdatasync, descriptor); }

int fsync(int descriptor) {
  struct stat status;
  // The names of a directory pass the gate.
  int is_directory = fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
  return is_directory ? sync_with(SYS_fsync, descriptor, 0) : sync_bytes(SYS_fsync, descriptor);
}

static int rename_failure;

void rename_gate_fail(int error) {
  pthread_mutex_lock(&mutex);
  rename_failure = error;
  pthread_mutex_unlock(&mutex);
}

// Likewise.
int renameat2(int from, const char *old_name, int to, const char *new_name, unsigned flags) {
  pthread_mutex_lock(&mutex);
  int error = rename_failure;
  pthread_mutex_unlock(&mutex);
  if (error == 0) error = disk_fault(DISK_RENAME, to, new_name);
  if (error != 0) {
    errno = error;
    return -1;
  }
  return (int)syscall(SYS_renameat2, from, old_name, to, new_name, flags);
}

struct path_failure {
  int error;
  char ending[64];
  unsigned long after;
  unsigned long count;
};
static struct path_failure open_failure, list_failure, open_delay, read_failure, truncate_failure, status_failure,
    unlink_failure, write_nothing;

static void path_fails(struct path_failure *failure, int error, const char *ending, unsigned long after) {
  pthread_mutex_lock(&mutex);
  *failure = (struct path_failure){.error = error, .after = after};
  snprintf(failure->ending, sizeof failure->ending, "%s", ending);
  pthread_mutex_unlock(&mutex);
}

void open_gate_fail(int error, const char *ending) { path_fails(&open_failure, error, ending, 0); }

void list_gate_fail(int error, const char *ending, unsigned long after) {
  path_fails(&list_failure, error, ending, after);
}

void open_gate_delay(unsigned microseconds, const char *ending) {
  path_fails(&open_delay, (int)microseconds, ending, 0);
}
void read_gate_fail(int error, const char *ending) { path_fails(&read_failure, error, ending, 0); }
void truncate_gate_fail(int error, const char *ending) { path_fails(&truncate_failure, error, ending, 0); }
void status_gate_fail(int error, const char *ending) { path_fails(&status_failure, error, ending, 0); }

void unlink_gate_fail(int error, const char *ending) { path_fails(&unlink_failure, error, ending, 0); }
void write_gate_take_nothing(int takes_nothing, const char *ending) {
  path_fails(&write_nothing, takes_nothing, ending, 0);
}

static unsigned long failures(struct path_failure *failure) {
  pthread_mutex_lock(&mutex);
  unsigned long count = failure->count;
  pthread_mutex_unlock(&mutex);
  return count;
}

unsigned long open_gate_failures(void) { return failures(&open_failure); }
unsigned long open_gate_delays(void) { return failures(&open_delay); }
unsigned long read_gate_failures(void) { return failures(&read_failure); }
unsigned long truncate_gate_failures(void) { return failures(&truncate_failure); }
unsigned long unlink_gate_failures(void) { return failures(&unlink_failure); }
unsigned long write_gate_failures(void) { return failures(&write_nothing); }
unsigned long status_gate_failures(void) { return failures(&status_failure); }

// Whether the path of that name in that directory ends like this.
static int path_ends(int directory, const char *name, const char *ending) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
  if (name[0] != '/' && readlink(link, path, 2048) < 0) path[0] = 0;
  size_t length = strlen(path);
  snprintf(path + length, sizeof path - length, "%s%s", name[0] ? "/" : "", name);
  length = strlen(path);
  size_t count = strlen(ending);
  return length >= count && strcmp(path + length - count, ending) == 0;
}

// The errno that a call fails with on that name in that directory; 0 if it does not.
static int path_failure(struct path_failure *failure, int directory, const char *name) {
  pthread_mutex_lock(&mutex);
  struct path_failure now = *failure;
  pthread_mutex_unlock(&mutex);
  if (now.error == 0 || !path_ends(directory, name, now.ending)) return 0;
  pthread_mutex_lock(&mutex);
  int error = failure->count++ >= failure->after ? failure->error : 0;
  pthread_mutex_unlock(&mutex);
  return error;
}

// Calls wait here while it is closed.
struct path_gate {
  int closed;
  char ending[64];
  // How many calls do not wait.
  unsigned long free;
  unsigned long waiters;
};
static struct path_gate open_gate, unlink_gate;

static void path_gate_set(struct path_gate *gate, int closed, const char *ending, unsigned long free) {
  pthread_mutex_lock(&mutex);
  gate->closed = closed;
  gate->free = free;
  snprintf(gate->ending, sizeof gate->ending, "%s", ending);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static unsigned long path_gate_waiters(struct path_gate *gate) {
  pthread_mutex_lock(&mutex);
  unsigned long count = gate->waiters;
  pthread_mutex_unlock(&mutex);
  return count;
}

void open_gate_close(const char *ending) { path_gate_set(&open_gate, 1, ending, 0); }
void open_gate_close_after(const char *ending, unsigned long free) { path_gate_set(&open_gate, 1, ending, free); }
void open_gate_open(void) { path_gate_set(&open_gate, 0, "", 0); }
unsigned long open_gate_waiters(void) { return path_gate_waiters(&open_gate); }
void unlink_gate_close(const char *ending) { path_gate_set(&unlink_gate, 1, ending, 0); }
void unlink_gate_open(void) { path_gate_set(&unlink_gate, 0, "", 0); }
unsigned long unlink_gate_waiters(void) { return path_gate_waiters(&unlink_gate); }

static void path_gate_pass(struct path_gate *gate, int directory, const char *name) {
  pthread_mutex_lock(&mutex);
  struct path_gate now = *gate;
  pthread_mutex_unlock(&mutex);
  if (!now.closed || !path_ends(directory, name, now.ending)) return;
  pthread_mutex_lock(&mutex);
  if (gate->free > 0) {
    gate->free--;
  } else {
    gate->waiters++;
    wait_at(&gate->closed);
    gate->waiters--;
  }
  pthread_mutex_unlock(&mutex);
}

int unlink_fault(int directory, const char *name) {
  path_gate_pass(&unlink_gate, directory, name);
  return path_failure(&unlink_failure, directory, name);
}

int takes_nothing(int descriptor) { return path_failure(&write_nothing, descriptor, ""); }

// Likewise.
int openat(int directory, const char *name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  path_gate_pass(&open_gate, directory, name);
  int delay = path_failure(&open_delay, directory, name);
  if (delay > 0) usleep((useconds_t)delay);
  int error = path_failure(&open_failure, directory, name);
  if (error == 0) error = disk_fault(DISK_OPEN, directory, name);
  if (error != 0) {
    errno = error;
    return -1;
  }
  if (flags & O_TRUNC) disk_cut(directory, name, 0);
  return (int)syscall(SYS_openat, directory, name, flags, mode);
}

// Likewise.
struct dirent *readdir(DIR *stream) {
  int error = path_failure(&list_failure, dirfd(stream), "");
  if (error == 0) error = disk_fault(DISK_LIST, dirfd(stream), NULL);
  if (error != 0) {
    errno = error;
    return NULL;
  }
  // Looked up at the first call, on any thread.
  typedef struct dirent *(*list_function)(DIR *);
  static _Atomic(list_function) known;
  list_function next = known;
  if (next == NULL) known = next = (list_function)dlsym(RTLD_NEXT, "readdir");
  return next(stream);
}

// Likewise.
ssize_t pread(int descriptor, void *buffer, size_t length, off_t offset) {
  int error = path_failure(&read_failure, descriptor, "");
  if (error == 0) error = disk_fault(DISK_READ, descriptor, NULL);
  if (error != 0) {
    errno = error;
    return -1;
  }
  return syscall(SYS_pread64, descriptor, buffer, length, offset);
}

// Likewise.
int ftruncate(int descriptor, off_t length) {
  int error = path_failure(&truncate_failure, descriptor, "");
  if (error == 0) error = disk_fault(DISK_TRUNCATE, descriptor, NULL);
  if (error != 0) {
    errno = error;
    return -1;
  }
  disk_cut(descriptor, "", length);
  return (int)syscall(SYS_ftruncate, descriptor, length);
}

void status_gate_close(void) {
  pthread_mutex_lock(&mutex);
  status_closed = 1;
  pthread_mutex_unlock(&mutex);
}

void status_gate_open(void) {
  pthread_mutex_lock(&mutex);
  status_closed = 0;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

unsigned long status_gate_waiters(void) {
  pthread_mutex_lock(&mutex);
  unsigned long count = status_waiters;
  pthread_mutex_unlock(&mutex);
  return count;
}

// Likewise. The kernel's structure is the C library's on 64-bit machines.
int fstatat(int directory, const char *name, struct stat *status, int flags) {
  pthread_mutex_lock(&mutex);
  status_waiters++;
  wait_at(&status_closed);
  status_waiters--;
  pthread_mutex_unlock(&mutex);
  int error = path_failure(&status_failure, directory, name);
  if (error == 0) error = disk_fault(DISK_STATUS, directory, name);
  if (error != 0) {
    errno = error;
    return -1;
  }
  return (int)syscall(SYS_newfstatat, directory, name, status, flags);
}
