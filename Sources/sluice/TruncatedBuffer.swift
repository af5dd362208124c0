// The end of a command whose buffer in memory another program truncates: a message and an exit code instead of a crash.

internal import Glibc
internal import StreamBuffers

/// Explains SIGBUS. With a spool, the circular buffer is a file in /dev/shm, so that it survives the process. If
/// another program truncates that file, the next access to its memory ends the process, and nothing else can notice it
/// before.
enum TruncatedBuffer {
  private static let message = Array(
    ("sluice: the stream's buffer in /dev/shm was truncated by another program. "
      + "The spool keeps the data that was synced. Later data is lost. "
      + "Start the command again: it sends the data in the spool.\n").utf8)
  // Set before the handler is installed.
  nonisolated(unsafe) private static var text = UnsafeBufferPointer<UInt8>(start: nil, count: 0)

  /// Call it before the first buffer is made. The handler is for the whole process.
  static func explain() {
    let copy = UnsafeMutableBufferPointer<UInt8>.allocate(capacity: message.count)
    _ = copy.initialize(from: message)
    text = UnsafeBufferPointer(copy)
    // From here on, it allocates nothing.
    _ = SharedMappings.contains(0)
    var action = sigaction()
    action.sa_flags = SA_SIGINFO
    action.__sigaction_handler.sa_sigaction = { _, information, _ in
      let address = UInt(bitPattern: information?.pointee._sifields._sigfault.si_addr)
      guard SharedMappings.contains(address) else {
        // It was something else: the instruction is repeated, and ends the process as usual.
        signal(SIGBUS, SIG_DFL)
        return
      }
      _ = write(STDERR_FILENO, TruncatedBuffer.text.baseAddress, TruncatedBuffer.text.count)
      _exit(ExitCode.inputOutput.rawValue)
    }
    sigaction(SIGBUS, &action, nil)
  }
}
