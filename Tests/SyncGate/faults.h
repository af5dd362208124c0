// What the functions of gate.c and calls.c ask of faults.c.
#pragma once

#include <sys/types.h>

#include "disk_faults.h"

/// Counts a call below the root. The errno with which it is to fail, or `DISK_SHORT`; 0 if it is not.
///
/// @param name NULL for the file of the descriptor itself.
int disk_fault(enum disk_call call, int directory, const char *name);

/// Whether calls are counted at all.
int disk_faults_are_counted(void);
/// Bytes were written to the file of a descriptor.
void disk_written(int descriptor, off_t start, ssize_t count);

/// Waits while the gate for such a path is closed. The errno with which unlinkat is to fail; 0 if it is not.
int unlink_fault(int directory, const char *name);
/// Whether a write is to take nothing, without an error.
int takes_nothing(int descriptor);

/// A sync begins now. It does not cover bytes that are written from here on.
unsigned long disk_sync_begins(void);
/// It has ended: of a file, or of the whole disk.
void disk_synced(int descriptor, unsigned long moment, int is_refused, int is_whole_disk);
/// A file keeps no more than its first bytes. An empty name is the descriptor's own file.
void disk_cut(int directory, const char *name, off_t length);
