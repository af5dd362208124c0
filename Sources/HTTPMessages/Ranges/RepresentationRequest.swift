// Selects the part of a representation for a GET or a HEAD. It evaluates preconditions and ranges in the order of RFC
// 9110, section 13.2.2.

/// The properties by which a client recognises a representation.
package struct Validators: Equatable, Sendable {
  /// A strong tag: the same tag means the same bytes.
  package var tag: EntityTag
  /// The time of the last change, in seconds since 1970.
  package var lastModified: Int64

  package init(tag: EntityTag, lastModified: Int64) { (self.tag, self.lastModified) = (tag, lastModified) }
}

/// The answer to a request for an existing representation.
package enum RepresentationAnswer: Equatable, Sendable {
  /// 200
  case whole
  /// 206 with these bytes.
  case part(Range<UInt64>)
  /// 304
  case notModified
  /// 412
  case preconditionFailed
  /// 416
  case unsatisfiable

  /// - Parameters:
  ///   - method: `GET` or `HEAD`.
  ///   - length: the length of the representation, in bytes.
  ///   - now: in seconds since 1970.
  package init(method: String, _ fields: HeaderFields, _ validators: Validators, length: UInt64, now: Int64) {
    self = Self.precondition(fields, validators) ?? Self.ranges(method, fields, validators, length, now) ?? .whole
  }

  /// The answer of a failed precondition; nil if all are met.
  private static func precondition(_ fields: HeaderFields, _ validators: Validators) -> RepresentationAnswer? {
    if let text = fields["if-match"] {
      // An unreadable condition matches nothing, because the client has asked not to receive another representation.
      let matches = EntityTag.List(parsing: text)?.contains { $0.isStronglyEqual(to: validators.tag) } ?? false
      if !matches { return .preconditionFailed }
    } else if let date = date(fields, "if-unmodified-since"), validators.lastModified > date {
      return .preconditionFailed
    }
    if let text = fields["if-none-match"] {
      let matches = EntityTag.List(parsing: text)?.contains { $0.isWeaklyEqual(to: validators.tag) } ?? false
      return matches ? .notModified : nil
    }
    if let date = date(fields, "if-modified-since"), validators.lastModified <= date { return .notModified }
    return nil
  }

  /// A malformed or repeated date is ignored (sections 13.1.3 and 13.1.4).
  private static func date(_ fields: HeaderFields, _ name: String) -> Int64? {
    fields.single(name).flatMap { HTTPDate.seconds(parsing: $0) }
  }

  /// nil if ranges are ignored: for a HEAD (section 14.2), for a changed representation, or if they would require
  /// several parts.
  private static func ranges(
    _ method: String, _ fields: HeaderFields, _ validators: Validators, _ length: UInt64, _ now: Int64
  ) -> RepresentationAnswer? {
    guard method == "GET", let text = fields.single("range"), let ranges = ByteRanges(parsing: text) else { return nil }
    if fields.count("if-range") > 0 {
      guard let condition = fields.single("if-range"), isCurrent(condition, validators, now) else { return nil }
    }
    // No range can describe the whole of an empty representation, but it can be sent.
    if length == 0, ranges.specs.contains(where: { if case .suffix(1...) = $0 { true } else { false } }) { return nil }
    let found = ranges.specs.compactMap { $0.range(in: length) }
    guard let first = found.first else { return .unsatisfiable }
    // The server never sends several parts, so a client that requests thousands of ranges costs no more than another
    // (section 17.15).
    return ranges.specs.count == 1 ? .part(first) : nil
  }

  /// Whether `If-Range` identifies the representation (section 13.1.5), by strong comparison.
  private static func isCurrent(_ condition: String, _ validators: Validators, _ now: Int64) -> Bool {
    if let tag = EntityTag(parsing: condition) { return tag.isStronglyEqual(to: validators.tag) }
    guard let date = HTTPDate.seconds(parsing: condition) else { return false }
    // If a file has changed within the last second, its date does not identify its bytes (section 8.8.2.2).
    return date == validators.lastModified && now > validators.lastModified + 1
  }
}
