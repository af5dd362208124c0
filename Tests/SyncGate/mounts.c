#define _GNU_SOURCE
#include "own_mounts.h"

#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>

int own_mounts_begin(void) {
  if (unshare(CLONE_NEWNS) != 0) return -1;
  // Or what is mounted here would be mounted for everybody (mount_namespaces(7), "Shared subtrees").
  return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
}
