// A disk that loses, at a power cut, everything that no sync has covered. A program that links this records in a
// journal each change of a directory's names, each change of two attributes of a file, and each sync. A test that kills
// the program can then reconstruct the content of such a disk. The records are described in disk.c.
#pragma once

/// The attribute that states up to where a growing file is synced.
#define FORGETFUL_DISK_MARK "user.sluice.synced"

/// The attribute of the record of a stream's owner.
#define FORGETFUL_DISK_OWNER "user.sluice.owner"

/// Begins to record what happens below `root`, an absolute path without symbolic links. All records are appended to the
/// file `journal`. Call it once, before the first thread.
void forgetful_disk_begin(const char *root, const char *journal);

/// Makes some syncs take up to that long, in microseconds, as a disk does. 0 for none.
void forgetful_disk_delay(unsigned microseconds, unsigned long seed);

/// The file to read instead of /proc/sys/kernel/random/boot_id.
void forgetful_disk_boot_id(const char *path);
