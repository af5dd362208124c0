// Response heads from libcurl's header callback, which passes them line by line. A load test receives thousands per
// second. So this code compares bytes, and makes strings only for stored values. Each step gets its own buffer, because
// a byte of a slice takes dozens of instructions.

internal import Glibc
internal import HTTPMessages

/// Assembles header lines into response heads.
struct ResponseHeadAssembler {
  /// Nil outside of a head.
  private var status: Int?
  private var version = HTTPResponse.Version.http11
  private var fields = HeaderFields()
  /// The fields of the last head. The next interim response has the same names, and their texts are used again.
  private var previous: [HeaderFields.Field] = []
  /// The trailer fields of the last response (RFC 9110, section 6.5).
  private(set) var trailers = HeaderFields()

  /// The maximum number of stored trailer fields. A head has as many fields as libcurl accepts.
  private static let trailerLimit = 64

  /// Takes one line, with or without its line end. Returns a head after the empty line.
  mutating func take(line bytes: UnsafeRawBufferPointer) -> HTTPResponse? {
    let line = Self.withoutLineEnd(bytes)
    guard let first = line.first else { return takeHead() }
    if first == UInt8(ascii: "H"), Self.begins(line, with: "HTTP/") {
      status = Self.status(line)
      version = Self.version(line)
      fields = HeaderFields()
      fields.reserveCapacity(4)
      if !trailers.all.isEmpty { trailers = HeaderFields() }
    } else if let colon = line.firstIndex(of: UInt8(ascii: ":")) {
      let name = UnsafeRawBufferPointer(rebasing: line[..<colon])
      let value = Self.trimmed(UnsafeRawBufferPointer(rebasing: line[(colon + 1)...]))
      if status != nil {
        append(name, value)
      } else if trailers.all.count < Self.trailerLimit {
        Self.append(name, value, to: &trailers)
      }
    }
    return nil
  }

  private mutating func takeHead() -> HTTPResponse? {
    guard let status else { return nil }
    var response = HTTPResponse(status: status, fields: fields)
    response.version = version
    self.status = nil
    previous = fields.all
    return response
  }

  /// Adds a field to the head.
  private mutating func append(_ name: UnsafeRawBufferPointer, _ value: UnsafeRawBufferPointer) {
    let index = fields.all.count
    if index < previous.count, Self.isSame(previous[index].rawName, name), value.allOctets(Octet.isFieldContent) {
      fields.append(HeaderFields.Field(checkedName: previous[index].rawName, checkedValue: Self.text(value)))
    } else {
      Self.append(name, value, to: &fields)
    }
  }

  private static func isSame(_ text: String, _ bytes: UnsafeRawBufferPointer) -> Bool {
    guard text.utf8.count == bytes.count, let address = bytes.baseAddress else { return false }
    // As many bytes as the text, which has an address because it is not empty.
    return text.utf8.span.withUnsafeBufferPointer { memcmp($0.baseAddress!, address, bytes.count) == 0 }
  }

  private static func append(
    _ name: UnsafeRawBufferPointer, _ value: UnsafeRawBufferPointer, to fields: inout HeaderFields
  ) {
    let isValid = !name.isEmpty && name.allOctets(Octet.isToken) && value.allOctets(Octet.isFieldContent)
    if isValid {
      fields.append(HeaderFields.Field(checkedName: text(name), checkedValue: text(value)))
    } else {
      fields.append(received: text(name), text(value))
    }
  }

  private static func begins(_ line: UnsafeRawBufferPointer, with word: StaticString) -> Bool {
    // A line with bytes has an address.
    line.count >= word.utf8CodeUnitCount && memcmp(line.baseAddress!, word.utf8Start, word.utf8CodeUnitCount) == 0
  }

  /// libcurl accepts "HTTP/1.0", "HTTP/1.1", "HTTP/2" and "HTTP/3".
  private static func version(_ line: UnsafeRawBufferPointer) -> HTTPResponse.Version {
    guard begins(line, with: "HTTP/1.") else { return .http2 }
    return begins(line, with: "HTTP/1.0 ") ? .http10 : .http11
  }

  /// The status of "HTTP/1.1 201 Created" or "HTTP/2 201". libcurl has checked the form.
  private static func status(_ line: UnsafeRawBufferPointer) -> Int {
    line.drop { $0 != UInt8(ascii: " ") }.drop { $0 == UInt8(ascii: " ") }
      .prefix { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }.prefix(3)
      .reduce(0) { 10 * $0 + Int($1 - UInt8(ascii: "0")) }
  }

  /// The line without its carriage return and line feed.
  private static func withoutLineEnd(_ line: UnsafeRawBufferPointer) -> UnsafeRawBufferPointer {
    var end = line.count
    while end > 0, line[end - 1] == UInt8(ascii: "\r") || line[end - 1] == UInt8(ascii: "\n") { end -= 1 }
    return UnsafeRawBufferPointer(rebasing: line[..<end])
  }

  /// The value without surrounding spaces and tabs.
  private static func trimmed(_ value: UnsafeRawBufferPointer) -> UnsafeRawBufferPointer {
    func isSpace(_ octet: UInt8) -> Bool { octet == UInt8(ascii: " ") || octet == UInt8(ascii: "\t") }
    var (start, end) = (0, value.count)
    while start < end, isSpace(value[start]) { start += 1 }
    while start < end, isSpace(value[end - 1]) { end -= 1 }
    return UnsafeRawBufferPointer(rebasing: value[start..<end])
  }

  /// Latin-1, like HTTP's obsolete text. A byte that is not UTF-8 must not discard the field.
  private static func text(_ bytes: UnsafeRawBufferPointer) -> String {
    var all: UInt8 = 0
    for byte in bytes { all |= byte }
    if all < 0x80 { return String(decoding: bytes, as: UTF8.self) }
    return String(String.UnicodeScalarView(bytes.map { Unicode.Scalar($0) }))
  }
}

extension UnsafeRawBufferPointer {
  @inline(__always)
  fileprivate func allOctets(_ isExpected: (UInt8) -> Bool) -> Bool {
    for index in indices where !isExpected(self[index]) { return false }
    return true
  }
}
