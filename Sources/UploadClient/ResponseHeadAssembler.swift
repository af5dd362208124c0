// Response heads from libcurl's header callback, which hands them over line by line. A load test gets thousands a second: what is
// looked at here are bytes, and text is made only of what is kept.

/// Puts header lines together to response heads.
struct ResponseHeadAssembler {
  private var current: HTTPResponse?

  /// Takes one line, with its line end or without; returns a head once the empty line behind it has come.
  mutating func take(line bytes: UnsafeRawBufferPointer) -> HTTPResponse? {
    var line = bytes[...]
    while let last = line.last, last == UInt8(ascii: "\r") || last == UInt8(ascii: "\n") { line.removeLast() }
    if line.isEmpty {
      defer { current = nil }
      return current
    }
    if line.starts(with: "HTTP/".utf8) {
      current = HTTPResponse(status: Self.status(line))
      current?.fields.reserveCapacity(4)
    } else if let colon = line.firstIndex(of: UInt8(ascii: ":")) {
      current?.fields.append(
        .init(name: Self.text(line[..<colon]), value: Self.text(Self.trimmed(line[(colon + 1)...]))))
    }
    return nil
  }

  /// Of "HTTP/1.1 201 Created", or "HTTP/2 201": libcurl has checked the form.
  private static func status(_ line: Slice<UnsafeRawBufferPointer>) -> Int {
    line.drop { $0 != UInt8(ascii: " ") }.drop { $0 == UInt8(ascii: " ") }
      .prefix { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }.prefix(3)
      .reduce(0) { 10 * $0 + Int($1 - UInt8(ascii: "0")) }
  }

  /// Without the spaces and tabs around it.
  private static func trimmed(_ line: Slice<UnsafeRawBufferPointer>) -> Slice<UnsafeRawBufferPointer> {
    func isSpace(_ byte: UInt8) -> Bool { byte == UInt8(ascii: " ") || byte == UInt8(ascii: "\t") }
    var result = line.drop(while: isSpace)
    while let last = result.last, isSpace(last) { result.removeLast() }
    return result
  }

  /// Latin-1, as HTTP's obsolete text is: a byte that is no UTF-8 must not lose the field.
  private static func text(_ bytes: Slice<UnsafeRawBufferPointer>) -> String {
    if bytes.allSatisfy({ $0 < 0x80 }) {
      return String(decoding: UnsafeRawBufferPointer(rebasing: bytes), as: UTF8.self)
    }
    return String(String.UnicodeScalarView(bytes.map { Unicode.Scalar($0) }))
  }
}
