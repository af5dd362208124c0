// Offset and length of an upload in a message's fields, the media type of its parts, the status code of its own.

package import HTTPMessages

/// Names and values that all versions share.
package enum UploadFields {
  package static let offset = "Upload-Offset"
  package static let length = "Upload-Length"
  package static let limit = "Upload-Limit"
  /// Sluice's own: the least time between two announcements of progress that the client asks for, in whole seconds.
  package static let progressInterval = "Stream-Progress-Interval"
  /// Of a part of a representation (section "Media Type application/partial-upload").
  package static let partialUpload = "application/partial-upload"
  /// Status code 104 (Upload Resumption Supported).
  package static let resumptionSupported = 104

  /// Everything that belongs to the protocol and not to the request that is uploaded.
  package static let all = [
    offset, length, limit, "Upload-Complete", "Upload-Incomplete", InteropVersion.fieldName,
  ]

  /// `Upload-Offset`: a non-negative Integer; nil if it is missing or anything else, which is to be ignored.
  package static func offset(_ fields: HeaderFields) -> UInt64? { nonNegative(fields[offset]) }

  /// `Upload-Length`, likewise.
  package static func length(_ fields: HeaderFields) -> UInt64? { nonNegative(fields[length]) }

  /// `Stream-Progress-Interval` in nanoseconds, at most a minute; nil if it is missing or invalid.
  package static func progressInterval(_ fields: HeaderFields) -> Int64? {
    nonNegative(fields[progressInterval]).map { Int64(min($0, 60)) * 1_000_000_000 }
  }

  /// An offset as a field's value; nil beyond what a structured field holds (10^15 - 1: a petabyte).
  package static func value(_ count: UInt64) -> String? {
    count <= UInt64(BareItem.largestInteger) ? String(count) : nil
  }

  /// The name of an offset or a completeness that is there and cannot be read; nil if there is none.
  ///
  /// Its value is to be ignored. The message is not silent about uploads, though: what it says is unknown.
  package static func unreadable(_ fields: HeaderFields) -> String? {
    if fields.contains(offset), offset(fields) == nil { return offset }
    return InteropVersion.completenessFieldNames.first { name in
      guard let text = fields[name] else { return false }
      guard case .boolean? = Item(parsing: text)?.value else { return true }
      return false
    }
  }

  private static func nonNegative(_ text: String?) -> UInt64? {
    guard let text, case .integer(let value)? = Item(parsing: text)?.value, value >= 0 else { return nil }
    return UInt64(value)
  }
}
