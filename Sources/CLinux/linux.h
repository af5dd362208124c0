// The Linux calls that Swift's Glibc module leaves out. Declarations only, no logic.
// _GNU_SOURCE stays undefined: with it, <sys/select.h> would differ from the one that the Glibc module was built with.
#pragma once

#include <link.h>
#include <linux/filter.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/statfs.h>
#include <sys/timex.h>

struct sockaddr;

// What glibc shows to _GNU_SOURCE only.

/// memfd_create(2)
extern int memfd_create(const char *name, unsigned int flags);
#define SLUICE_MFD_CLOEXEC 1U
/// madvise(2), since Linux 5.14
#define SLUICE_MADV_POPULATE_WRITE 23
/// pthread_setname_np(3)
extern int pthread_setname_np(unsigned long thread, const char *name);
/// accept4(2)
extern int accept4(int listener, struct sockaddr *address, unsigned int *length, int flags);
/// dup3(2)
extern int dup3(int descriptor, int replaced, int flags);
/// syncfs(2)
extern int syncfs(int descriptor);
/// renameat2(2)
extern int renameat2(int oldDirectory, const char *oldPath, int newDirectory, const char *newPath, unsigned int flags);
#define SLUICE_RENAME_NOREPLACE 1U
#define SLUICE_RENAME_EXCHANGE 2U
/// statx(2)
struct sluice_statx_time {
  long long tv_sec;
  unsigned int tv_nsec;
  int reserved;
};
struct sluice_statx {
  unsigned int stx_mask;
  unsigned int before_times[15];
  struct sluice_statx_time stx_atime, stx_btime;
  unsigned long long rest[20];
};
extern int statx(int directory, const char *path, int flags, unsigned int mask, struct sluice_statx *status);
_Static_assert(sizeof(struct sluice_statx) == 256, "as the kernel writes it");
_Static_assert(__builtin_offsetof(struct sluice_statx, stx_btime) == 0x50, "as the kernel writes it");
#define SLUICE_STATX_BTIME 0x800U
/// open(2): O_TMPFILE without the O_DIRECTORY that is a part of it
#define SLUICE_O_TMPFILE 0x400000
/// open(2): a descriptor that only identifies the file, without a permission for it
#define SLUICE_O_PATH 0x200000
/// fallocate(2)
extern int fallocate(int descriptor, int mode, long offset, long length);
#define SLUICE_FALLOC_FL_KEEP_SIZE 1
#define SLUICE_FALLOC_FL_PUNCH_HOLE 2
/// xattr(7)
extern int fsetxattr(int descriptor, const char *name, const void *value, size_t size, int flags);
extern ssize_t fgetxattr(int descriptor, const char *name, void *value, size_t size);
extern int fremovexattr(int descriptor, const char *name);
/// sync_file_range(2)
extern int sync_file_range(int descriptor, off_t offset, off_t count, unsigned int flags);
#define SLUICE_SYNC_FILE_RANGE_WRITE 2U
/// Waits, writes, and waits for that.
#define SLUICE_SYNC_FILE_RANGE_ALL 7U
/// preadv2(2)
struct iovec;
extern long preadv2(int descriptor, const struct iovec *pieces, int count, long offset, int flags);
#define SLUICE_RWF_NOWAIT 8
/// fcntl(2): locks of an open file description
#define SLUICE_F_OFD_GETLK 36
#define SLUICE_F_OFD_SETLK 37
/// lseek(2)
#define SLUICE_SEEK_DATA 3
#define SLUICE_SEEK_HOLE 4

/// What dl_iterate_phdr(3) reports about a loaded object; the fields that all versions of glibc have.
struct dl_phdr_info {
  ElfW(Addr) dlpi_addr;
  const char *dlpi_name;
  const ElfW(Phdr) * dlpi_phdr;
  ElfW(Half) dlpi_phnum;
};
extern int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *info, unsigned long size, void *data), void *data);
