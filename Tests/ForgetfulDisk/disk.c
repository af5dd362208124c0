// See ForgetfulDisk.h. The linker takes these functions before glibc's. They are weak, because SyncGate has a
// fdatasync(2) of its own, and one test bundle links both.
//
// A record is written after the call that it is about and before that call returns. A process that was killed in
// between has reported the call to no other process, so the record may be missing.
//
// Each record is a letter, its number, and the words below, each after one space, and ends with a line feed. The
// numbers are in the order in which the calls began. A and B are octets of the lengths that precede them.
//
//     C number inode path            a file was created
//     L number inode path            a file got another name
//     T number inode path            a file was opened with O_CREAT and O_TRUNC
//     R number flags path path       renameat2(2)
//     U number path                  a name was removed
//     M number path                  a directory was created
//     X number inode length A        a file's mark is A from now on; empty if it was removed
//     O number inode length A        the same for the attribute with the owner of a stream
//     D number path                  a directory was synced
//     S number inode length length AB
//                                    a file was synced with its mark A, empty for none, and its content B
//     S number inode - length B      the same by fdatasync(2), which does not cover the mark
//
// The mark is the attribute FORGETFUL_DISK_MARK, and the owner is FORGETFUL_DISK_OWNER. The disk has no others.
#define _GNU_SOURCE
#include "ForgetfulDisk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <dirent.h>
#include <time.h>
#include <unistd.h>

#define PATH 4200
// An attribute's value is shorter.
#define ATTRIBUTE 256
#define REPLACEMENT __attribute__((weak, visibility("default")))

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH];
static size_t root_length;
static int journal = -1;
static unsigned long next_number;
static unsigned longest_delay;
static unsigned long random_state;
static char boot_id[PATH];

void forgetful_disk_begin(const char *directory, const char *path) {
  snprintf(root, sizeof root, "%s", directory);
  root_length = strlen(root);
  journal = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (journal < 0) {
    perror(path);
    abort();
  }
}

void forgetful_disk_delay(unsigned microseconds, unsigned long seed) {
  longest_delay = microseconds;
  random_state = seed | 1;
}

void forgetful_disk_boot_id(const char *path) { snprintf(boot_id, sizeof boot_id, "%s", path); }

// One write(2), so that a record is there as a whole or not at all.
static void record(const char *head, const void *content, size_t count) {
  struct iovec parts[3] = {{(void *)head, strlen(head)}, {(void *)content, count}, {"\n", 1}};
  if (syscall(SYS_writev, journal, parts, 3) < 0) {
    perror("the journal of the forgetful disk");
    abort();
  }
}

// The absolute path of an open file; 0 if it has none.
static int path_of(int descriptor, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t count = readlink(link, path, PATH - 1);
  if (count <= 0) return 0;
  path[count] = 0;
  return 1;
}

// The absolute path of a name; 0 if it is not below the root.
static int resolve(int directory, const char *name, char *path) {
  if (journal < 0) return 0;
  if (name[0] == '/') {
    snprintf(path, PATH, "%s", name);
  } else {
    char base[PATH];
    if (directory == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) return 0;
    } else if (!path_of(directory, base)) {
      return 0;
    }
    if (snprintf(path, PATH, "%s/%s", base, name) >= PATH) return 0;
  }
  return strncmp(path, root, root_length) == 0 && path[root_length] == '/';
}

static void wait_for_the_disk(void) {
  if (longest_delay == 0) return;
  pthread_mutex_lock(&mutex);
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  unsigned long draw = random_state;
  pthread_mutex_unlock(&mutex);
  // Three of four syncs find an idle disk.
  if (draw % 4) return;
  struct timespec time = {0, (long)((draw >> 8) % longest_delay) * 1000};
  nanosleep(&time, NULL);
}

// MARK: Names

static int open_recorded(int directory, const char *name, int flags, mode_t mode) {
  char path[PATH];
  if (boot_id[0] && strcmp(name, "/proc/sys/kernel/random/boot_id") == 0) name = boot_id;
  if (!(flags & O_CREAT) || !resolve(directory, name, path)) {
    return (int)syscall(SYS_openat, directory, name, flags, mode);
  }
  pthread_mutex_lock(&mutex);
  int is_new = syscall(SYS_faccessat, directory, name, F_OK) != 0;
  int descriptor = (int)syscall(SYS_openat, directory, name, flags, mode);
  int error = errno;
  struct stat status;
  if (descriptor >= 0 && (is_new || (flags & O_TRUNC)) && fstat(descriptor, &status) == 0) {
    char head[PATH + 100];
    char letter = is_new ? 'C' : 'T';
    snprintf(head, sizeof head, "%c %lu %lu %s", letter, next_number++, (unsigned long)status.st_ino, path);
    record(head, "", 0);
  }
  pthread_mutex_unlock(&mutex);
  errno = error;
  return descriptor;
}

#define MODE(flags, last) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | __O_TMPFILE)) { \
    va_list list; \
    va_start(list, last); \
    mode = va_arg(list, mode_t); \
    va_end(list); \
  }

REPLACEMENT int open(const char *path, int flags, ...) {
  MODE(flags, flags)
  return open_recorded(AT_FDCWD, path, flags, mode);
}
REPLACEMENT int open64(const char *path, int flags, ...) {
  MODE(flags, flags)
  return open_recorded(AT_FDCWD, path, flags, mode);
}
REPLACEMENT int openat(int directory, const char *path, int flags, ...) {
  MODE(flags, flags)
  return open_recorded(directory, path, flags, mode);
}
REPLACEMENT int openat64(int directory, const char *path, int flags, ...) {
  MODE(flags, flags)
  return open_recorded(directory, path, flags, mode);
}

static int renamed(int from, const char *old_name, int to, const char *new_name, unsigned flags) {
  char old_path[PATH], new_path[PATH];
  if (!resolve(from, old_name, old_path) || !resolve(to, new_name, new_path)) {
    return (int)syscall(SYS_renameat2, from, old_name, to, new_name, flags);
  }
  pthread_mutex_lock(&mutex);
  int result = (int)syscall(SYS_renameat2, from, old_name, to, new_name, flags);
  int error = errno;
  if (result == 0) {
    char head[2 * PATH + 100];
    snprintf(head, sizeof head, "R %lu %u %s %s", next_number++, flags, old_path, new_path);
    record(head, "", 0);
  }
  pthread_mutex_unlock(&mutex);
  errno = error;
  return result;
}
// Not one through another: a test may have a replacement of its own for one of them.
REPLACEMENT int renameat2(int from, const char *old_name, int to, const char *new_name, unsigned flags) {
  return renamed(from, old_name, to, new_name, flags);
}

REPLACEMENT int renameat(int from, const char *old_name, int to, const char *new_name) {
  return renamed(from, old_name, to, new_name, 0);
}
REPLACEMENT int rename(const char *old_name, const char *new_name) {
  return renamed(AT_FDCWD, old_name, AT_FDCWD, new_name, 0);
}

REPLACEMENT int linkat(int from, const char *old_name, int to, const char *new_name, int flags) {
  char path[PATH];
  if (!resolve(to, new_name, path)) return (int)syscall(SYS_linkat, from, old_name, to, new_name, flags);
  pthread_mutex_lock(&mutex);
  int result = (int)syscall(SYS_linkat, from, old_name, to, new_name, flags);
  int error = errno;
  struct stat status;
  if (result == 0 && fstatat(to, new_name, &status, AT_SYMLINK_NOFOLLOW) == 0) {
    char head[PATH + 100];
    snprintf(head, sizeof head, "L %lu %lu %s", next_number++, (unsigned long)status.st_ino, path);
    record(head, "", 0);
  }
  pthread_mutex_unlock(&mutex);
  errno = error;
  return result;
}

static int change_name(long call, char letter, int directory, const char *name, long argument) {
  char path[PATH];
  if (!resolve(directory, name, path)) return (int)syscall(call, directory, name, argument);
  pthread_mutex_lock(&mutex);
  int result = (int)syscall(call, directory, name, argument);
  int error = errno;
  if (result == 0) {
    char head[PATH + 100];
    snprintf(head, sizeof head, "%c %lu %s", letter, next_number++, path);
    record(head, "", 0);
  }
  pthread_mutex_unlock(&mutex);
  errno = error;
  return result;
}

REPLACEMENT int unlinkat(int directory, const char *name, int flags) {
  return change_name(SYS_unlinkat, 'U', directory, name, flags);
}
REPLACEMENT int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
REPLACEMENT int mkdirat(int directory, const char *name, mode_t mode) {
  return change_name(SYS_mkdirat, 'M', directory, name, mode);
}
REPLACEMENT int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

// MARK: Attributes

// A null value removes it.
static int change_attribute(int descriptor, const char *name, const void *value, size_t size, int flags) {
  char path[PATH];
  int is_owner = strcmp(name, FORGETFUL_DISK_OWNER) == 0;
  int is_ours = journal >= 0 && (is_owner || strcmp(name, FORGETFUL_DISK_MARK) == 0) && path_of(descriptor, path) &&
                strncmp(path, root, root_length) == 0;
  if (is_ours) pthread_mutex_lock(&mutex);
  int result = (int)(value ? syscall(SYS_fsetxattr, descriptor, name, value, size, flags)
                           : syscall(SYS_fremovexattr, descriptor, name));
  int error = errno;
  struct stat status;
  if (is_ours && result == 0) {
    if (size >= ATTRIBUTE || fstat(descriptor, &status) != 0) abort();
    char head[100];
    snprintf(
      head, sizeof head, "%c %lu %lu %zu ", is_owner ? 'O' : 'X', next_number++, (unsigned long)status.st_ino, size);
    record(head, value ? value : "", size);
  }
  if (is_ours) pthread_mutex_unlock(&mutex);
  errno = error;
  return result;
}

REPLACEMENT int fsetxattr(int descriptor, const char *name, const void *value, size_t size, int flags) {
  return change_attribute(descriptor, name, value, size, flags);
}
REPLACEMENT int fremovexattr(int descriptor, const char *name) {
  return change_attribute(descriptor, name, NULL, 0, 0);
}

// MARK: Syncs

// A sync covers the content and the attribute at the moment when it begins. So these are copied first, and recorded
// when the sync returns.
struct covered {
  char head[PATH + 100];
  // The attribute if it is covered, and then the content.
  unsigned char *octets;
  size_t count;
};

static unsigned long number(void) {
  pthread_mutex_lock(&mutex);
  unsigned long result = next_number++;
  pthread_mutex_unlock(&mutex);
  return result;
}

static int cover(int descriptor, int covers_attribute, struct covered *covered) {
  struct stat status;
  char link[64], path[PATH], attribute[ATTRIBUTE];
  if (journal < 0 || fstat(descriptor, &status) != 0) return 0;
  if (!path_of(descriptor, path) || strncmp(path, root, root_length) != 0) return 0;
  covered->octets = NULL;
  covered->count = 0;
  if (S_ISDIR(status.st_mode)) {
    snprintf(covered->head, sizeof covered->head, "D %lu %s", number(), path);
    return 1;
  }
  // The descriptor may be for writing only.
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  int source = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
  if (source < 0) abort();
  // The records of the attribute's other values have higher numbers if and only if they are later.
  pthread_mutex_lock(&mutex);
  unsigned long taken = next_number++;
  ssize_t length = fgetxattr(source, FORGETFUL_DISK_MARK, attribute, sizeof attribute);
  pthread_mutex_unlock(&mutex);
  size_t attribute_count = covers_attribute && length > 0 ? (size_t)length : 0;
  if (fstat(source, &status) != 0) abort();
  covered->octets = malloc(attribute_count + (size_t)status.st_size + 1);
  memcpy(covered->octets, attribute, attribute_count);
  unsigned char *content = covered->octets + attribute_count;
  size_t content_count = 0;
  while (content_count < (size_t)status.st_size) {
    ssize_t count =
      pread(source, content + content_count, (size_t)status.st_size - content_count, (off_t)content_count);
    if (count <= 0) break;
    content_count += (size_t)count;
  }
  close(source);
  covered->count = attribute_count + content_count;
  char attribute_length[32] = "-";
  if (covers_attribute) snprintf(attribute_length, sizeof attribute_length, "%zu", attribute_count);
  snprintf(
    covered->head, sizeof covered->head, "S %lu %lu %s %zu ", taken, (unsigned long)status.st_ino, attribute_length,
    content_count);
  return 1;
}

static void recorded(struct covered *covered) {
  pthread_mutex_lock(&mutex);
  record(covered->head, covered->octets ? covered->octets : (unsigned char *)"", covered->count);
  pthread_mutex_unlock(&mutex);
  free(covered->octets);
}

static int sync_recorded(long call, int descriptor) {
  struct covered covered;
  int is_ours = cover(descriptor, call == SYS_fsync, &covered);
  wait_for_the_disk();
  int result = (int)syscall(call, descriptor);
  int error = errno;
  if (is_ours && result == 0) recorded(&covered);
  else if (is_ours) free(covered.octets);
  errno = error;
  return result;
}

REPLACEMENT int fsync(int descriptor) { return sync_recorded(SYS_fsync, descriptor); }
REPLACEMENT int fdatasync(int descriptor) { return sync_recorded(SYS_fdatasync, descriptor); }

// The tree is two levels deep: the streams, and the server's own directories beside them. Syncs the names or the files.
static void sync_tree(const char *path, int depth, unsigned char type) {
  int directory = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (directory < 0) return;
  struct covered covered;
  if (type == DT_DIR && cover(directory, 1, &covered)) recorded(&covered);
  DIR *list = fdopendir(directory);
  struct dirent *entry;
  while (list && (entry = readdir(list))) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    char name[PATH + 300];
    snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
    if (entry->d_type == DT_DIR && depth < 4) {
      sync_tree(name, depth + 1, type);
    } else if (entry->d_type == type) {
      int file = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
      if (file < 0) continue;
      if (cover(file, 1, &covered)) recorded(&covered);
      close(file);
    }
  }
  if (list) closedir(list);
}

REPLACEMENT int syncfs(int descriptor) {
  wait_for_the_disk();
  if (journal >= 0) {
    // The process may be killed in between. No file has its bytes before all directories have the older names.
    sync_tree(root, 0, DT_DIR);
    sync_tree(root, 0, DT_REG);
  }
  return (int)syscall(SYS_syncfs, descriptor);
}
