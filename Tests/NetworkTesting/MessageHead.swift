// The head of an HTTP/1.1 message in a proxy: parsed, and with its original bytes.

/// A request's or a response's start line and fields, RFC 9112, section 2.
package struct MessageHead: Equatable, Sendable, CustomStringConvertible {
  /// The original bytes, including the empty line at the end.
  package let bytes: [UInt8]
  /// The start line.
  package let line: String
  private let fieldLines: [String]

  /// - Parameter bytes: up to and including the empty line. Malformed lines are kept, but not interpreted.
  package init(_ bytes: [UInt8]) {
    self.bytes = bytes
    // Not with `split` on the text, because CR LF is one Character and a bare LF is another.
    let lines = bytes.split(separator: UInt8(ascii: "\n")).map { line in
      String(decoding: line.last == UInt8(ascii: "\r") ? line.dropLast() : line, as: UTF8.self)
    }
    line = lines.first ?? ""
    fieldLines = lines.dropFirst().filter { !$0.isEmpty }
  }

  /// The first value of a field, with a case-insensitive name.
  package subscript(name: String) -> String? {
    for line in fieldLines {
      guard let colon = line.firstIndex(of: ":"), line[..<colon].lowercased() == name.lowercased() else { continue }
      return String(line[line.index(after: colon)...].drop { $0 == " " || $0 == "\t" })
    }
    return nil
  }

  /// A field with one number, such as `Upload-Offset` and `Content-Length`.
  package func integer(_ name: String) -> UInt64? { self[name].flatMap { UInt64($0) } }

  /// The method of a request, such as `POST`.
  package var method: String { String(line.prefix { $0 != " " }) }

  /// The status of a response, such as 104; 0 if there is none.
  package var status: Int { line.split(separator: " ").dropFirst().first.flatMap { Int($0) } ?? 0 }
  /// Whether another response to the same request follows. 101 is final, RFC 9110, section 15.2.2.
  package var isInterim: Bool { (100..<200).contains(status) && status != 101 }

  /// The same head with a different value in one field.
  package func replacing(_ name: String, with value: String) -> MessageHead {
    let lines = fieldLines.map { line in
      line.lowercased().hasPrefix(name.lowercased() + ":") ? "\(name): \(value)" : line
    }
    return MessageHead(Array(([line] + lines + ["", ""]).joined(separator: "\r\n").utf8))
  }

  package var description: String { ([line] + fieldLines).joined(separator: "\n") }
}
