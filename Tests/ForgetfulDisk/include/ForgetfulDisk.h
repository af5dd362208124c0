// A disk that forgets at a power cut what no sync covered. The program that links this records, in a journal, each
// change of a directory's names and each sync; whoever kills the program can then put together what a disk would hold.
#pragma once

/// Begins to record what happens below `root`, an absolute path without symbolic links. All records are appended to the
/// file `journal`. Call it once, before the first thread.
void forgetful_disk_begin(const char *root, const char *journal);

/// Makes some syncs take up to that long, in microseconds, as a disk does. 0 for none.
void forgetful_disk_delay(unsigned microseconds, unsigned long seed);

/// What /proc/sys/kernel/random/boot_id is read from instead.
void forgetful_disk_boot_id(const char *path);
