#include "SyncGate.h"

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int closed;
static int failure;
static int single_failure;
static unsigned long calls_before_failure;
static unsigned long calls;
static int status_closed;
static unsigned long status_waiters;

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

// The linker takes this one before glibc's.
int fdatasync(int descriptor) {
  pthread_mutex_lock(&mutex);
  calls++;
  while (closed) pthread_cond_wait(&changed, &mutex);
  int error = failure;
  if (single_failure != 0 && calls_before_failure-- == 0) {
    error = single_failure;
    single_failure = 0;
  }
  pthread_mutex_unlock(&mutex);
  if (error != 0) {
    errno = error;
    return -1;
  }
  return (int)syscall(SYS_fdatasync, descriptor);
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
  if (error != 0) {
    errno = error;
    return -1;
  }
  return (int)syscall(SYS_renameat2, from, old_name, to, new_name, flags);
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
  while (status_closed) pthread_cond_wait(&changed, &mutex);
  status_waiters--;
  pthread_mutex_unlock(&mutex);
  return (int)syscall(SYS_newfstatat, directory, name, status, flags);
}
