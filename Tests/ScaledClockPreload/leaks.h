// See leaks.c.
#pragma once
#include <stdbool.h>
#include <stdint.h>

/// Leaks what PLANTED_LEAKS names, if 100 s have passed since the last time.
void leak_if_due(int64_t now_ns);
