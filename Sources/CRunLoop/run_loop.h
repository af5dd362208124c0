// What Foundation's `RunLoop` is made of and does not show. Both functions are in the library that Foundation itself is
// in (CFRunLoop.h of swift-corelibs-foundation). `RunLoop` has no way to wake a loop from another thread but a timer,
// which costs two system calls and a lock of the kernel's timers.

#ifndef SLUICE_RUN_LOOP_H
#define SLUICE_RUN_LOOP_H

/// The run loop of the calling thread. Not retained: it lives as long as a `RunLoop` of that thread is retained.
void *_Nonnull CFRunLoopGetCurrent(void);

/// Wakes a run loop that sleeps. Any thread.
void CFRunLoopWakeUp(void *_Nonnull runLoop);

#endif
