// See disk_faults.h. The functions of gate.c and calls.c ask here first.
#define _GNU_SOURCE
#include "disk_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "faults.h"

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
// The sanitizer learns from its own write(2) and read(2) which thread woke which.
#define NOT_POSSIBLE
#endif
#endif

enum { PATH = 4200 };

// Bytes that were written since the last sync of their file, or that a sync has refused.
struct extent {
  dev_t device;
  ino_t file;
  off_t start, end;
  unsigned long moment;
  int is_lost;
  struct extent *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH];
static unsigned long calls[DISK_CALLS];
static enum disk_call failing_call;
static unsigned long failing_number;
static int failing_error;
static char failed_path[PATH];
static struct extent *extents;
static unsigned long writes;
static _Thread_local unsigned exemptions;

static void forget_extents(void) {
  while (extents) {
    struct extent *first = extents;
    extents = first->next;
    free(first);
  }
}

void disk_faults_begin(const char *directory) {
  pthread_mutex_lock(&mutex);
  snprintf(root, sizeof root, "%s", directory);
  memset(calls, 0, sizeof calls);
  failing_number = 0;
  failed_path[0] = 0;
  forget_extents();
  pthread_mutex_unlock(&mutex);
}

void disk_faults_fail(enum disk_call call, unsigned long number, int error) {
  pthread_mutex_lock(&mutex);
  failing_call = call;
  failing_number = calls[call] + number;
  failing_error = error;
  failed_path[0] = 0;
  pthread_mutex_unlock(&mutex);
}

void disk_faults_exempt_begin(void) { exemptions++; }
void disk_faults_exempt_end(void) { exemptions--; }

unsigned long disk_faults_calls(enum disk_call call) {
  pthread_mutex_lock(&mutex);
  unsigned long count = calls[call];
  pthread_mutex_unlock(&mutex);
  return count;
}

const char *disk_faults_place(void) {
  static _Thread_local char copy[PATH];
  pthread_mutex_lock(&mutex);
  memcpy(copy, failed_path, sizeof copy);
  pthread_mutex_unlock(&mutex);
  return copy;
}

int disk_faults_are_possible(void) {
#ifdef NOT_POSSIBLE
  return 0;
#else
  return 1;
#endif
}

// The path that a call is about; 0 if it is not below the root, or if nobody asked.
static int resolve(int directory, const char *name, char *path) {
  if (root[0] == 0) return 0;
  char link[64];
  path[0] = 0;
  if (name == NULL || name[0] != '/') {
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t count = readlink(link, path, PATH / 2);
    if (count <= 0) return 0;
    path[count] = 0;
  }
  if (name) {
    size_t length = strlen(path);
    snprintf(path + length, PATH - length, "%s%s", name[0] == '/' ? "" : "/", name);
  }
  return strncmp(path, root, strlen(root)) == 0;
}

int disk_faults_are_counted(void) { return root[0] != 0; }

// Whether this is a file with the ages of uploads (UploadRecordStore), and not the file that will replace it.
static int contains_ages(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL && strncmp(slash, "/ages-", 6) == 0 && strchr(slash, '~') == NULL;
}

int disk_fault(enum disk_call call, int directory, const char *name) {
  if (exemptions > 0) return 0;
  char path[PATH];
  int error = errno;
  int is_counted = resolve(directory, name, path);
  errno = error;
  if (!is_counted) return 0;
  if (call == DISK_OPEN && contains_ages(path)) call = DISK_OPEN_AGES;
  pthread_mutex_lock(&mutex);
  int fails = ++calls[call] == failing_number && call == failing_call;
  if (fails) memcpy(failed_path, path, sizeof failed_path);
  int result = fails ? failing_error : 0;
  pthread_mutex_unlock(&mutex);
  return result;
}

// fstat(2) itself, because calls.c replaces the C library's.
static int look_at(int descriptor, struct stat *status) {
  return (int)syscall(SYS_newfstatat, descriptor, "", status, AT_EMPTY_PATH);
}

// MARK: Bytes that no sync has covered

// With the mutex. Takes a stretch of a file out of all extents.
static void covered(ino_t file, off_t start, off_t end) {
  for (struct extent **place = &extents; *place;) {
    struct extent *each = *place;
    if (each->file != file || each->end <= start || end <= each->start) {
      place = &each->next;
    } else if (each->start < start && end < each->end) {
      struct extent *rest = malloc(sizeof *rest);
      *rest = *each;
      rest->start = end;
      each->end = start;
      each->next = rest;
      return;
    } else if (each->start < start) {
      each->end = start;
    } else if (end < each->end) {
      each->start = end;
    } else {
      *place = each->next;
      free(each);
    }
  }
}

void disk_written(int descriptor, off_t start, ssize_t count) {
  char path[PATH];
  struct stat status;
  if (count <= 0 || !resolve(descriptor, NULL, path) || look_at(descriptor, &status) != 0) return;
  // Bytes of a descriptor that appends go to its end, regardless of the given offset (pwrite(2), "BUGS").
  if (fcntl(descriptor, F_GETFL) & O_APPEND) start = status.st_size - count;
  pthread_mutex_lock(&mutex);
  covered(status.st_ino, start, start + count);
  struct extent *one = malloc(sizeof *one);
  *one = (struct extent){status.st_dev, status.st_ino, start, start + count, ++writes, 0, extents};
  extents = one;
  pthread_mutex_unlock(&mutex);
}

void disk_cut(int directory, const char *name, off_t length) {
  struct stat status;
  int error = errno;
  if (root[0] != 0 && syscall(SYS_newfstatat, directory, name, &status, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) == 0) {
    pthread_mutex_lock(&mutex);
    covered(status.st_ino, length, INT64_MAX);
    pthread_mutex_unlock(&mutex);
  }
  errno = error;
}

unsigned long disk_sync_begins(void) {
  pthread_mutex_lock(&mutex);
  unsigned long moment = writes;
  pthread_mutex_unlock(&mutex);
  return moment;
}

void disk_synced(int descriptor, unsigned long moment, int is_refused, int is_whole_disk) {
  char path[PATH];
  struct stat status;
  if (!resolve(descriptor, NULL, path) || look_at(descriptor, &status) != 0) return;
  pthread_mutex_lock(&mutex);
  for (struct extent **place = &extents; *place;) {
    struct extent *each = *place;
    int is_included = is_whole_disk ? each->device == status.st_dev : each->file == status.st_ino;
    if (each->is_lost || each->moment > moment || !is_included) {
      place = &each->next;
    } else if (is_refused) {
      // The kernel drops the pages, and the next sync succeeds without them (fsync(2), "Errors").
      each->is_lost = 1;
      place = &each->next;
    } else {
      *place = each->next;
      free(each);
    }
  }
  pthread_mutex_unlock(&mutex);
}

static unsigned long count_or_drop(ino_t file, int descriptor) {
  static const char zeros[4096];
  unsigned long count = 0;
  pthread_mutex_lock(&mutex);
  for (struct extent *each = extents; each; each = each->next) {
    if (each->file != file) continue;
    count += (unsigned long)(each->end - each->start);
    for (off_t at = each->start; descriptor >= 0 && at < each->end;) {
      size_t left = (size_t)(each->end - at);
      long done = syscall(SYS_pwrite64, descriptor, zeros, left < sizeof zeros ? left : sizeof zeros, at);
      if (done <= 0) break;
      at += done;
    }
  }
  pthread_mutex_unlock(&mutex);
  return count;
}

unsigned long disk_faults_unsynced(const char *path) {
  struct stat status;
  return stat(path, &status) == 0 ? count_or_drop(status.st_ino, -1) : 0;
}

unsigned long disk_faults_drop(const char *path) {
  int descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC);
  struct stat status;
  unsigned long count = 0;
  if (descriptor >= 0 && look_at(descriptor, &status) == 0) count = count_or_drop(status.st_ino, descriptor);
  if (descriptor >= 0) close(descriptor);
  return count;
}
