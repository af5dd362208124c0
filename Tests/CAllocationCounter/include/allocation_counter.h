// Counts the calling thread's heap allocations, so that "does not allocate" is a number and not a promise.
#pragma once

/// Allocations that the calling thread has made since it began; -1 under a sanitizer, which brings its own allocator.
long allocations_of_this_thread(void);
