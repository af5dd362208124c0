// The tests that open real PCMs.

import Testing

/// Serialized, because they measure real time, and count calls of threads by name.
@Suite("Real ALSA", .serialized)
enum RealALSA {}
