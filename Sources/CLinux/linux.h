// The Linux calls that Swift's Glibc module leaves out. Declarations only, no logic.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <linux/sockios.h>

/// memfd_create(2): glibc hides the prototype unless _GNU_SOURCE is set for the whole module.
extern int memfd_create(const char *name, unsigned int flags);
/// epoll_pwait2(2), likewise: a time-out in nanoseconds.
extern int epoll_pwait2(int epfd, struct epoll_event *events, int maxevents, const struct timespec *timeout,
                        const sigset_t *sigmask);
