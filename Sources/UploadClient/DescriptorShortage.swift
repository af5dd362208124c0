// Detects that this process lacks descriptors, because neither libcurl nor its libraries report that reliably.

internal import EventLoops
internal import Glibc

extension SystemError {
  /// The error if this process cannot open `count` more descriptors. Nil if it can.
  static func shortage(ofDescriptors count: Int) -> SystemError? {
    var opened: [Int32] = []
    defer { for descriptor in opened { close(descriptor) } }
    do throws(SystemError) {
      for _ in 0..<count {
        opened.append(
          try retryingInterrupts("cannot open a file or socket") { open("/dev/null", O_RDONLY | O_CLOEXEC) })
      }
      return nil
    } catch {
      return error.isTemporary ? error : nil
    }
  }
}
