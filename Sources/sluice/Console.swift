// The two outputs: people's text on standard error, data and JSON on standard output.

internal import Glibc
internal import Synchronization

/// Writes whole lines from any thread, and keeps a changing status of one or more lines below them on a terminal.
final class Console: Sendable {
  static let shared = Console()

  /// The status lines that stand on the terminal now.
  private let status = Mutex<[String]>([])

  static var isTerminal: Bool { isatty(2) == 1 }

  /// A line for people. The status moves below it.
  func say(_ line: String) {
    status.withLock { status in
      write(2, "\(Self.erasing(status))\(line)\n\(status.joined(separator: "\n"))")
    }
  }

  /// Replaces the status line; an empty one takes it away.
  func show(status line: String) { show(status: line.isEmpty ? [] : [line]) }

  /// Replaces the status. No line may reach the terminal's last column: it would become two.
  func show(status lines: [String]) {
    status.withLock { status in
      if lines.isEmpty && status.isEmpty { return }
      write(2, Self.erasing(status) + lines.joined(separator: "\n"))
      status = lines
    }
  }

  /// Leaves the status where it is and goes on below it.
  func keepStatus() {
    status.withLock { status in
      if !status.isEmpty { write(2, "\n") }
      status = []
    }
  }

  /// What takes the status away again: up to its first line, and everything from there on.
  private static func erasing(_ status: [String]) -> String {
    switch status.count {
    case 0: ""
    case 1: "\r\u{1B}[K"
    default: "\r\u{1B}[\(status.count - 1)A\u{1B}[J"
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
