// Bytes as a file in memory, for code that sends files.

internal import CLinux
internal import EventLoops
internal import Foundation
internal import Glibc

/// Closed when it is dropped. Until then, its path identifies it in this process.
final class MemoryFile {
  let path: String
  private let descriptor: Int32

  /// - Throws: `SystemError` if the system refuses memory or a descriptor.
  init(_ data: Data) throws(SystemError) {
    descriptor = try retryingInterrupts("memfd_create") { memfd_create("upload", SLUICE_MFD_CLOEXEC) }
    path = "/proc/self/fd/\(descriptor)"
    try writeAll(Array(data), to: descriptor, "writing to memory")
  }

  deinit { close(descriptor) }
}
