// The two outputs: people's text on standard error, data and JSON on standard output.

internal import Glibc
internal import Synchronization

/// Writes whole lines from any thread, and keeps one changing status line below them on a terminal.
final class Console: Sendable {
  static let shared = Console()

  /// The status line that stands on the terminal now; empty when there is none.
  private let status = Mutex("")

  static var isTerminal: Bool { isatty(2) == 1 }

  /// A line for people. The status line moves below it.
  func say(_ line: String) {
    status.withLock { status in
      write(2, status.isEmpty ? "\(line)\n" : "\r\u{1B}[K\(line)\n\(status)")
    }
  }

  /// Replaces the status line; an empty one takes it away.
  func show(status line: String) {
    status.withLock { status in
      if line.isEmpty && status.isEmpty { return }
      write(2, "\r\u{1B}[K\(line)")
      status = line
    }
  }

  /// Leaves the status line where it is and goes on below it.
  func keepStatus() {
    status.withLock { status in
      if !status.isEmpty { write(2, "\n") }
      status = ""
    }
  }

  /// A line of data for programs.
  func put(_ line: String) { status.withLock { _ in write(1, "\(line)\n") } }

  /// The terminal's width in columns; 80 where it does not say.
  static var width: Int {
    var size = winsize()
    return ioctl(2, UInt(TIOCGWINSZ), &size) == 0 && size.ws_col > 0 ? Int(size.ws_col) : 80
  }

  /// A reader that went away (`EPIPE`) must not end the stream: what cannot be written is dropped.
  private func write(_ descriptor: Int32, _ text: String) {
    var rest = Array(text.utf8)[...]
    while !rest.isEmpty {
      let count = rest.withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) }
      if count < 0 && errno == EINTR { continue }
      if count <= 0 { return }
      rest = rest.dropFirst(count)
    }
  }
}
