// Selects the part of a representation for a GET or a HEAD. It evaluates preconditions and ranges in the order of RFC
// 9110, section 13.2.2.

/// What is known of a representation by which a client recognises it.
package struct Validators: Equatable, Sendable {
  /// A strong one: the same tag means the same bytes.
  package var tag: EntityTag
  /// In seconds since 1970.
  package var lastModified: Int64

  package init(tag: EntityTag, lastModified: Int64) { (self.tag, self.lastModified) = (tag, lastModified) }
}

/// What a request for a representation that exists is to be answered with.
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
  ///   - length: of the representation, in bytes.
  ///   - now: in seconds since 1970.
  package init(method: String, _ fields: HeaderFields, _ validators: Validators, length: UInt64, now: Int64) {
    self = Self.precondition(fields, validators) ?? Self.ranges(method, fields, validators, length, now) ?? .whole
  }

  /// nil if nothing stands in the way.
  private static func precondition(_ fields: HeaderFields, _ validators: Validators) -> RepresentationAnswer? {
    if let text = fields["if-match"] {
      // What cannot be read matches nothing: the client has asked not to be given another representation.
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

  /// A date that is malformed, or there twice, is ignored (sections 13.1.3 and 13.1.4).
  private static func date(_ fields: HeaderFields, _ name: String) -> Int64? {
    fields.single(name).flatMap { HTTPDate.seconds(parsing: $0) }
  }

  /// nil where ranges are ignored: of a HEAD (section 14.2), of what has changed, and those that would need several
  /// parts.
  private static func ranges(
    _ method: String, _ fields: HeaderFields, _ validators: Validators, _ length: UInt64, _ now: Int64
  ) -> RepresentationAnswer? {
    guard method == "GET", let text = fields.single("range"), let ranges = ByteRanges(parsing: text) else { return nil }
    if fields.count("if-range") > 0 {
      guard let condition = fields.single("if-range"), isCurrent(condition, validators, now) else { return nil }
    }
    // The whole of nothing cannot be named by a range, but it can be sent.
    if length == 0, ranges.specs.contains(where: { if case .suffix(1...) = $0 { true } else { false } }) { return nil }
    let found = ranges.specs.compactMap { $0.range(in: length) }
    guard let first = found.first else { return .unsatisfiable }
    // A client must not count on several parts, and one that asks for thousands must not cost more than one that does
    // not (section 17.15).
    return ranges.specs.count == 1 ? .part(first) : nil
  }

  /// Whether `If-Range` names the representation (section 13.1.5), strongly.
  private static func isCurrent(_ condition: String, _ validators: Validators, _ now: Int64) -> Bool {
    if let tag = EntityTag(parsing: condition) { return tag.isStronglyEqual(to: validators.tag) }
    guard let date = HTTPDate.seconds(parsing: condition) else { return false }
    // Of a file that is as young as a second, the date does not tell which bytes it had (section 8.8.2.2).
    return date == validators.lastModified && now > validators.lastModified + 1
  }
}
