// A layer under all file operations below one directory: the n-th call of a kind fails, and what no sync has covered
// can be dropped.
//
// It replaces functions of the C library, so no operation can bypass it. The files are those of a real file system.
// Counting is all that it does to calls that do not fail.
#pragma once

enum disk_call {
  DISK_OPEN,            ///< open, openat, but for DISK_OPEN_AGES
  DISK_WRITE,           ///< write, pwrite, pwritev
  DISK_READ,            ///< read, pread
  DISK_SYNC,            ///< fdatasync, fsync, syncfs
  DISK_RENAME,          ///< renameat, renameat2
  DISK_TRUNCATE,        ///< ftruncate
  DISK_UNLINK,          ///< unlinkat
  DISK_MAKE_DIRECTORY,  ///< mkdir, mkdirat
  DISK_LIST,            ///< readdir
  DISK_STATUS,          ///< fstat, fstatat
  DISK_LOCK,            ///< flock
  DISK_ACCESS,          ///< faccessat
  DISK_ALLOCATE,        ///< posix_fallocate
  DISK_MAP,             ///< mmap of a file
  DISK_OPEN_AGES,       ///< openat of `ages-*`: each server looks for 256 such files when it starts
  DISK_SEEK,            ///< lseek
  DISK_GET_ATTRIBUTE,   ///< fgetxattr
  DISK_SET_ATTRIBUTE,   ///< fsetxattr, fremovexattr
  DISK_CALLS
};

/// Instead of an errno: a write takes half of its bytes.
enum { DISK_SHORT = -1 };

/// Counts the calls below this directory from now on, and forgets what was. With "", no directory.
void disk_faults_begin(const char *directory);
/// Makes the n-th call of a kind from now on fail with that errno, once. A sync that fails drops what it was to cover.
void disk_faults_fail(enum disk_call call, unsigned long number, int error);
/// From here on, the calls of this thread are those of the test: they are neither counted nor failed. Pairs may nest.
void disk_faults_exempt_begin(void);
void disk_faults_exempt_end(void);
/// How many calls of a kind there were.
unsigned long disk_faults_calls(enum disk_call call);
/// The path that the failed call was about; empty if none has failed.
const char *disk_faults_place(void);
/// How many bytes of a file no sync has covered.
unsigned long disk_faults_unsynced(const char *path);
/// Fills with zeros what no sync of a file has covered, as a power cut may do. Returns how many bytes these were.
unsigned long disk_faults_drop(const char *path);
/// Not under ThreadSanitizer.
int disk_faults_are_possible(void);
