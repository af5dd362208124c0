// A terminal for a command, and the text that a user would see on it.

import EventLoops
import Glibc
import NetworkTesting

private final class TerminalBytes: Sendable {
  let all = Lock<[UInt8]>([])
}

/// A pseudoterminal. It collects a program's output to `inner`.
final class TestTerminal {
  let columns: Int
  private let outer: Int32
  private(set) var inner: Int32
  private let bytes = TerminalBytes()
  private var reader: NamedThread?

  init(columns: Int) throws {
    self.columns = columns
    outer = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC)
    // TIOCSPTLCK and TIOCGPTN, which Glibc's module omits: unlock the inner end, and get its number.
    var (locked, number) = (Int32(0), Int32(0))
    guard outer >= 0, ioctl(outer, 0x4004_5431, &locked) == 0, ioctl(outer, 0x8004_5430, &number) == 0 else {
      throw TestFailure("no terminal: \(String(cString: strerror(errno)))")
    }
    inner = open("/dev/pts/\(number)", O_RDWR | O_NOCTTY | O_CLOEXEC)
    guard inner >= 0 else { throw TestFailure("no terminal: \(String(cString: strerror(errno)))") }
    var size = winsize(ws_row: 24, ws_col: UInt16(columns), ws_xpixel: 0, ws_ypixel: 0)
    guard ioctl(inner, UInt(TIOCSWINSZ), &size) == 0 else { throw TestFailure("no terminal of \(columns) columns") }
  }

  deinit {
    if inner >= 0 { close(inner) }
    close(outer)
  }

  /// Reads until the inner end is closed everywhere. Call it after the program was started.
  func startReading() {
    let outer = outer
    reader = try? NamedThread("test terminal") { [bytes] in
      var buffer = [UInt8](repeating: 0, count: 16_384)
      while case let count = read(outer, &buffer, buffer.count), count > 0 || count < 0 && errno == EINTR {
        if count > 0 { bytes.all.withLock { $0 += buffer[..<count] } }
      }
    }
    close(inner)
    inner = -1
  }

  func waitUntilRead() {
    reader?.join()
    reader = nil
  }

  var text: String { bytes.all.withLock { String(decoding: $0, as: UTF8.self) } }
}

/// A terminal's text: permanent lines, and statuses that are replaced in place.
struct TerminalLines {
  /// Statuses, in order.
  private(set) var statuses: [String] = []
  /// Permanent lines.
  private(set) var lines: [String] = []

  /// - Parameter text: a status is erased by a carriage return and `ESC [ K`.
  init(_ text: String) {
    let scalars = Array(text.unicodeScalars)
    var line = ""
    var index = 0
    while index < scalars.count {
      let rest = scalars[index...]
      if rest.starts(with: "\r\n".unicodeScalars) || scalars[index] == "\n" {
        lines.append(line)
        line = ""
        index += scalars[index] == "\n" ? 1 : 2
      } else if rest.starts(with: "\r\u{1B}[K".unicodeScalars) {
        statuses.append(line)
        line = ""
        index += 4
      } else {
        line.unicodeScalars.append(scalars[index])
        index += 1
      }
    }
    lines.append(line)
  }

  /// The first status that reaches the last column, where a terminal begins another line.
  func tooWide(_ columns: Int) -> String? { statuses.first { Self.width(of: $0) >= columns } }

  /// The first line with a control character from a server or a device.
  var unprintable: String? {
    (lines + statuses).first { $0.unicodeScalars.contains { $0.value < 0x20 || (0x7F..<0xA0).contains($0.value) } }
  }

  /// The number of columns: two for East Asian wide characters and emoji (Unicode Standard Annex 11), none for
  /// combining marks.
  static func width(of text: String) -> Int {
    text.unicodeScalars.reduce(0) { sum, scalar in
      switch scalar.value {
      case 0x300...0x36F, 0x200B...0x200F, 0xFE00...0xFE0F: sum
      case 0x1100...0x115F, 0x2E80...0xA4CF, 0xAC00...0xD7A3, 0xF900...0xFAFF, 0xFE30...0xFE6F, 0xFF00...0xFF60,
        0xFFE0...0xFFE6, 0x1F300...0x1FAFF, 0x20000...0x3FFFD:
        sum + 2
      default: sum + 1
      }
    }
  }
}
