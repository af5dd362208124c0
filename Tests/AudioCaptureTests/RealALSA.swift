// The tests that open real PCMs.

import Testing

/// One at a time: they measure real time, and count what threads of one name do.
@Suite("Real ALSA", .serialized)
enum RealALSA {}
