// Offset and length fields of an upload, the media type of its parts, and its own status code.

package import HTTPMessages

/// Names and values that all versions share.
package enum UploadFields {
  package static let offset = "Upload-Offset"
  package static let length = "Upload-Length"
  package static let limit = "Upload-Limit"
  /// Sluice's own field: the minimum time between two announcements of progress that the client requests, in whole
  /// seconds.
  package static let progressInterval = "Stream-Progress-Interval"
  /// The media type of a part of a representation (section "Media Type application/partial-upload").
  package static let partialUpload = "application/partial-upload"
  /// Status code 104 (Upload Resumption Supported).
  package static let resumptionSupported = 104

  /// The fields that belong to the protocol rather than to the uploaded request.
  package static let all = [
    offset, length, limit, "Upload-Complete", "Upload-Incomplete", InteropVersion.fieldName,
  ]

  /// `Upload-Offset`: a non-negative Integer; nil if it is missing or invalid, since an invalid one must be ignored.
  package static func offset(_ fields: HeaderFields) -> UInt64? { nonNegative(fields[offset]) }

  /// `Upload-Length`, under the same rules.
  package static func length(_ fields: HeaderFields) -> UInt64? { nonNegative(fields[length]) }

  /// `Stream-Progress-Interval` in nanoseconds, at most a minute; nil if it is missing or invalid.
  package static func progressInterval(_ fields: HeaderFields) -> Int64? {
    nonNegative(fields[progressInterval]).map { Int64(min($0, 60)) * 1_000_000_000 }
  }

  /// An offset as a field's value; nil beyond the maximum of a structured field (10^15 - 1, a petabyte).
  package static func value(_ count: UInt64) -> String? {
    count <= UInt64(BareItem.largestInteger) ? String(count) : nil
  }

  /// The name of an offset or completeness field with an unreadable value; nil if there is none.
  ///
  /// The value must be ignored. The message is still about uploads, but its content is unknown.
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
