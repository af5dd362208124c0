// A disk that loses, at a power cut, everything that no sync has covered. A program that links this records in a
// journal each change of a directory's names, each change of one attribute of a file, and each sync. A test that kills
// the program can then reconstruct the content of such a disk. The records are described in disk.c.
#pragma once

/// The attribute of files that is recorded.
#define FORGETFUL_DISK_ATTRIBUTE "user.sluice.synced"

/// Begins to record what happens below `root`, an absolute path without symbolic links. All records are appended to the
/// file `journal`. Call it once, before the first thread.
void forgetful_disk_begin(const char *root, const char *journal);

/// Makes some syncs take up to that long, in microseconds, as a disk does. 0 for none.
void forgetful_disk_delay(unsigned microseconds, unsigned long seed);

/// The file to read instead of /proc/sys/kernel/random/boot_id.
void forgetful_disk_boot_id(const char *path);
