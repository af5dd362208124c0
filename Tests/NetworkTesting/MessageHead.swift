// The head of an HTTP/1.1 message as a proxy holds it: understood, and byte for byte as it came.

/// A request's or a response's start line and fields, RFC 9112, section 2.
package struct MessageHead: Equatable, Sendable, CustomStringConvertible {
  /// As it came, the empty line at its end included.
  package let bytes: [UInt8]
  /// The start line.
  package let line: String
  private let fieldLines: [String]

  /// - Parameter bytes: up to and including the empty line. What is malformed is kept and means nothing.
  package init(_ bytes: [UInt8]) {
    self.bytes = bytes
    // Not by `split` on the text: CR LF is one Character, a bare LF is another one.
    let lines = bytes.split(separator: UInt8(ascii: "\n")).map { line in
      String(decoding: line.last == UInt8(ascii: "\r") ? line.dropLast() : line, as: UTF8.self)
    }
    line = lines.first ?? ""
    fieldLines = lines.dropFirst().filter { !$0.isEmpty }
  }

  /// The first value of a field, whatever the case of its name.
  package subscript(name: String) -> String? {
    for line in fieldLines {
      guard let colon = line.firstIndex(of: ":"), line[..<colon].lowercased() == name.lowercased() else { continue }
      return String(line[line.index(after: colon)...].drop { $0 == " " || $0 == "\t" })
    }
    return nil
  }

  /// A field that holds one number, as `Upload-Offset` and `Content-Length` do.
  package func integer(_ name: String) -> UInt64? { self[name].flatMap { UInt64($0) } }

  /// `POST`, …; of a request.
  package var method: String { String(line.prefix { $0 != " " }) }

  /// 104, …; of a response, 0 if it says none.
  package var status: Int { line.split(separator: " ").dropFirst().first.flatMap { Int($0) } ?? 0 }
  /// Whether another response to the same request follows; 101 is final, RFC 9110, section 15.2.2.
  package var isInterim: Bool { (100..<200).contains(status) && status != 101 }

  /// The same head with another value in one field.
  package func replacing(_ name: String, with value: String) -> MessageHead {
    let lines = fieldLines.map { line in
      line.lowercased().hasPrefix(name.lowercased() + ":") ? "\(name): \(value)" : line
    }
    return MessageHead(Array(([line] + lines + ["", ""]).joined(separator: "\r\n").utf8))
  }

  package var description: String { ([line] + fieldLines).joined(separator: "\n") }
}
