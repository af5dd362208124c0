// A small disk that is gone with the process that made it, however that ends.
#pragma once

/// From here on the calling thread, and those that it starts, mount for themselves alone. 0, or -1 with errno.
int own_mounts_begin(void);
