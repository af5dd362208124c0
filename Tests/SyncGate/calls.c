// The functions in front of the C library that only faults.c needs. Those of gate.c have more to do.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "faults.h"

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
// The sanitizer learns from its own write(2) and read(2) which thread woke which.
#define NOT_POSSIBLE
#endif
#endif

#define FAIL_IF_DUE(call, directory, name) \
  int error = disk_fault(call, directory, name); \
  if (error != 0) { \
    errno = error; \
    return -1; \
  }

// SoundCards replaces it as well, and also continues with openat(2).
__attribute__((weak)) int open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  return openat(AT_FDCWD, path, flags, mode);
}

int fstat(int descriptor, struct stat *status) {
  FAIL_IF_DUE(DISK_STATUS, descriptor, NULL)
  return (int)syscall(SYS_newfstatat, descriptor, "", status, AT_EMPTY_PATH);
}

off_t lseek(int descriptor, off_t offset, int whence) {
  FAIL_IF_DUE(DISK_SEEK, descriptor, NULL)
  return (off_t)syscall(SYS_lseek, descriptor, offset, whence);
}

ssize_t fgetxattr(int descriptor, const char *name, void *value, size_t size) {
  FAIL_IF_DUE(DISK_GET_ATTRIBUTE, descriptor, NULL)
  return (ssize_t)syscall(SYS_fgetxattr, descriptor, name, value, size);
}

int fsetxattr(int descriptor, const char *name, const void *value, size_t size, int flags) {
  FAIL_IF_DUE(DISK_SET_ATTRIBUTE, descriptor, NULL)
  return (int)syscall(SYS_fsetxattr, descriptor, name, value, size, flags);
}

int fremovexattr(int descriptor, const char *name) {
  FAIL_IF_DUE(DISK_SET_ATTRIBUTE, descriptor, NULL)
  return (int)syscall(SYS_fremovexattr, descriptor, name);
}

int flock(int descriptor, int operation) {
  // The kernel does not refuse to give up a lock.
  if (operation == LOCK_UN) return (int)syscall(SYS_flock, descriptor, operation);
  FAIL_IF_DUE(DISK_LOCK, descriptor, NULL)
  return (int)syscall(SYS_flock, descriptor, operation);
}

int faccessat(int directory, const char *name, int mode, int flags) {
  FAIL_IF_DUE(DISK_ACCESS, directory, name)
  return (int)syscall(SYS_faccessat2, directory, name, mode, flags);
}

// Returns the error, and leaves errno alone.
int posix_fallocate(int descriptor, off_t offset, off_t length) {
  int error = disk_fault(DISK_ALLOCATE, descriptor, NULL);
  if (error != 0) return error;
  return syscall(SYS_fallocate, descriptor, 0, offset, length) == 0 ? 0 : errno;
}

void *mmap(void *address, size_t length, int protection, int flags, int descriptor, off_t offset) {
  // Most calls are about memory.
  int error = descriptor >= 0 && disk_faults_are_counted() ? disk_fault(DISK_MAP, descriptor, NULL) : 0;
  if (error == 0) return (void *)syscall(SYS_mmap, address, length, protection, flags, descriptor, offset);
  errno = error;
  return MAP_FAILED;
}

int renameat(int from, const char *old_name, int to, const char *new_name) {
  FAIL_IF_DUE(DISK_RENAME, to, new_name)
  disk_cut(to, new_name, 0);
  return (int)syscall(SYS_renameat2, from, old_name, to, new_name, 0);
}

int unlinkat(int directory, const char *name, int flags) {
  int refusal = unlink_fault(directory, name);
  if (refusal != 0) {
    errno = refusal;
    return -1;
  }
  FAIL_IF_DUE(DISK_UNLINK, directory, name)
  // Another file may get its number.
  disk_cut(directory, name, 0);
  return (int)syscall(SYS_unlinkat, directory, name, flags);
}

int mkdir(const char *path, mode_t mode) {
  FAIL_IF_DUE(DISK_MAKE_DIRECTORY, AT_FDCWD, path)
  return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int mkdirat(int directory, const char *name, mode_t mode) {
  FAIL_IF_DUE(DISK_MAKE_DIRECTORY, directory, name)
  return (int)syscall(SYS_mkdirat, directory, name, mode);
}

int syncfs(int descriptor) {
  unsigned long moment = disk_sync_begins();
  int error = disk_fault(DISK_SYNC, descriptor, NULL);
  if (error == 0 && syscall(SYS_syncfs, descriptor) != 0) error = errno;
  if (error != EINTR) disk_synced(descriptor, moment, error != 0, 1);
  errno = error;
  return error ? -1 : 0;
}

#ifndef NOT_POSSIBLE
static int short_or_error(int descriptor, size_t *count) {
  int error = disk_fault(DISK_WRITE, descriptor, NULL);
  if (error != DISK_SHORT) return error;
  *count = (*count + 1) / 2;
  return 0;
}

ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t offset) {
  if (takes_nothing(descriptor)) return 0;
  if ((errno = short_or_error(descriptor, &count)) != 0) return -1;
  ssize_t done = syscall(SYS_pwrite64, descriptor, bytes, count, offset);
  disk_written(descriptor, offset, done);
  return done;
}

ssize_t pwritev(int descriptor, const struct iovec *pieces, int piece_count, off_t offset) {
  size_t count = 0;
  for (int index = 0; index < piece_count; index++) count += pieces[index].iov_len;
  size_t wanted = count;
  if ((errno = short_or_error(descriptor, &count)) != 0) return -1;
  ssize_t done;
  if (count < wanted) {
    // The first piece, or half of it.
    size_t first = pieces[0].iov_len < count ? pieces[0].iov_len : count;
    done = syscall(SYS_pwrite64, descriptor, pieces[0].iov_base, first, offset);
  } else {
    done = syscall(SYS_pwritev, descriptor, pieces, (long)piece_count, (long)offset, 0L);
  }
  disk_written(descriptor, offset, done);
  return done;
}

ssize_t write(int descriptor, const void *bytes, size_t count) {
  if (takes_nothing(descriptor)) return 0;
  if (!disk_faults_are_counted()) return syscall(SYS_write, descriptor, bytes, count);
  off_t offset = (off_t)syscall(SYS_lseek, descriptor, 0, SEEK_CUR);
  if ((errno = short_or_error(descriptor, &count)) != 0) return -1;
  ssize_t done = syscall(SYS_write, descriptor, bytes, count);
  if (offset >= 0) disk_written(descriptor, offset, done);
  return done;
}

ssize_t read(int descriptor, void *bytes, size_t count) {
  FAIL_IF_DUE(DISK_READ, descriptor, NULL)
  return syscall(SYS_read, descriptor, bytes, count);
}
#endif
