// zlib, as installed on the system: its CRC-32, which guards what a spool keeps.
#pragma once
#include <zlib.h>
