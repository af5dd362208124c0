// Quoting for messages that contain foreign text, and for suggested commands that contain paths.

internal import UploadClient

extension UploadRequest {
  /// A URL within a command to repeat. The values of its query are not shown.
  static func shellWords(_ url: String) -> String {
    let shown = withoutSecrets(url)
    return shown.shellQuoted + (shown == withoutCredentials(url) ? "" : " (with the values of the query)")
  }
}

extension String {
  /// This text as one word of a POSIX shell. Safe text is unchanged, and other text is in single quotes.
  var shellQuoted: String {
    let isSafe = utf8.allSatisfy { octet in
      switch octet {
      case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
        UInt8(ascii: "0")...UInt8(ascii: "9"):
        true
      default: "-._/:@%+=,".utf8.contains(octet)
      }
    }
    if isSafe, !isEmpty { return self }
    // A control character would reach the terminal. bash, zsh and ksh read it from $'…'.
    guard unicodeScalars.contains(where: { $0.value < 0x20 || (0x7F..<0xA0).contains($0.value) }) else {
      return "'" + replacing("'", with: #"'\''"#) + "'"
    }
    let escaped = utf8.map { octet in
      switch octet {
      case UInt8(ascii: "'"), UInt8(ascii: "\\"): "\\" + String(Unicode.Scalar(octet))
      case 0x20..<0x7F: String(Unicode.Scalar(octet))
      default: "\\x" + String(0x100 + Int(octet), radix: 16).dropFirst()
      }
    }
    return "$'" + escaped.joined() + "'"
  }

  /// This text in quotation marks for messages. Control characters are escaped, and a long text is shortened.
  var shown: String { "\"\(count > 100 ? prefix(97).description.escaped + "..." : escaped)\"" }

  /// This text with escaped control characters.
  var escaped: String { printable(self) }

  /// This path as an operand. A path that begins with a hyphen would be taken for an option.
  var shellOperand: String { (hasPrefix("-") ? "./" + self : self).shellQuoted }
}
