// The drafts of the protocol as rows of one table, which contains only their differences.

package import HTTPMessages

/// One iteration of draft-ietf-httpbis-resumable-upload, identified by its interop version.
package struct InteropVersion: Equatable, Sendable {
  /// The value of `Upload-Draft-Interop-Version`; nil for the future RFC, which has no such field.
  package let number: Int?
  /// `Upload-Incomplete` with the value inverted, instead of `Upload-Complete`.
  package let invertsCompleteness: Bool
  /// Whether 104 responses report progress by `Upload-Offset`.
  package let tellsProgress: Bool
  /// Whether PATCH requests carry `Content-Type: application/partial-upload`.
  package let namesMediaType: Bool
  /// Whether there are `Upload-Limit` and `Upload-Length`.
  package let hasLimits: Bool
  /// The limit that contains an upload resource's lifetime.
  package let lifetimeKey: String
  /// The statuses of an upload resource's answers, where the drafts differ.
  package let statuses: Statuses
  /// Whether HEAD and DELETE with the fields of an append are refused.
  package let refusesAppendFields: Bool
  /// Whether the server repeats the final response when a client completes a complete upload again.
  package let replaysResponse: Bool

  /// Whether there is a problem type for an append to a complete upload.
  package let namesCompletedUpload: Bool

  /// The statuses of an upload resource's answers, where the drafts differ.
  package struct Statuses: Equatable, Sendable {
    /// To an append that leaves the upload incomplete.
    package var appended = 204
    /// To every request, once the resource is inactive.
    package var inactive = 410
    /// To an append to a complete upload.
    package var completed = 409
  }

  private init(
    _ number: Int?, invertsCompleteness: Bool = false, tellsProgress: Bool = true, namesMediaType: Bool = true,
    hasLimits: Bool = true, lifetimeKey: String = "max-age", statuses: Statuses = Statuses(),
    refusesAppendFields: Bool = false, replaysResponse: Bool = true, namesCompletedUpload: Bool = false
  ) {
    self.number = number
    self.invertsCompleteness = invertsCompleteness
    self.tellsProgress = tellsProgress
    self.namesMediaType = namesMediaType
    self.hasLimits = hasLimits
    self.lifetimeKey = lifetimeKey
    self.statuses = statuses
    self.refusesAppendFields = refusesAppendFields
    self.replaysResponse = replaysResponse
    self.namesCompletedUpload = namesCompletedUpload
  }

  /// The future RFC: like the newest draft, -12, without an interop field.
  package static let none = InteropVersion(nil)

  /// Newest first: the order in which a client steps down.
  package static let drafts: [InteropVersion] = [
    // -09 … -12, of which the last has no problem type for complete uploads
    InteropVersion(8, namesCompletedUpload: true),
    // -06 … -08
    InteropVersion(7, namesCompletedUpload: true),
    // -04, -05: iOS 18.1 and later, tusd, SwiftNIO
    InteropVersion(
      6, lifetimeKey: "expires", statuses: Statuses(appended: 201, inactive: 404, completed: 400),
      refusesAppendFields: true, replaysResponse: false, namesCompletedUpload: true),
    // -03: iOS 18.0
    InteropVersion(5, namesMediaType: false, hasLimits: false, statuses: early, refusesAppendFields: true),
    // -02
    InteropVersion(
      4, tellsProgress: false, namesMediaType: false, hasLimits: false, statuses: early, refusesAppendFields: true),
    // -01: iOS 17, macOS 14
    InteropVersion(
      3, invertsCompleteness: true, tellsProgress: false, namesMediaType: false, hasLimits: false, statuses: early,
      refusesAppendFields: true),
  ]

  /// For -01 to -03, which do not specify the answer to an append to a complete upload.
  private static let early = Statuses(appended: 201, inactive: 404)

  package static let newest = drafts[0]

  /// The draft with that number, if the table has it.
  package init?(number: Int64) {
    guard let row = Self.drafts.first(where: { $0.number.map(Int64.init) == number }) else { return nil }
    self = row
  }

  /// The next older draft; nil for the oldest, and for the RFC.
  package var older: InteropVersion? {
    guard let index = Self.drafts.firstIndex(of: self), index + 1 < Self.drafts.count else { return nil }
    return Self.drafts[index + 1]
  }

  package static let fieldName = "Upload-Draft-Interop-Version"

  /// The version that a message's fields name.
  package enum Named: Equatable, Sendable {
    /// There is no such field. The message uses the RFC, or does not use the protocol.
    case absent
    case known(InteropVersion)
    /// An unknown version, or not an Integer.
    case unknown

    package init(_ fields: HeaderFields) {
      guard let text = fields[InteropVersion.fieldName] else {
        self = .absent
        return
      }
      guard case .integer(let number)? = Item(parsing: text)?.value, let version = InteropVersion(number: number) else {
        self = .unknown
        return
      }
      self = .known(version)
    }
  }

  // MARK: Completeness

  package var completenessFieldName: String { Self.completenessFieldNames[invertsCompleteness ? 1 : 0] }

  /// The field names of all versions.
  static let completenessFieldNames = ["Upload-Complete", "Upload-Incomplete"]

  /// `Upload-Complete` of a message, or the inverted `Upload-Incomplete`; nil if it is missing or not a Boolean, which
  /// must be ignored (section "Completeness").
  package func completeness(_ fields: HeaderFields) -> Bool? {
    guard let text = fields[completenessFieldName], case .boolean(let value)? = Item(parsing: text)?.value else {
      return nil
    }
    return invertsCompleteness ? !value : value
  }

  /// The same for a message of unknown version, which may have either field; `false` if either of two fields states it.
  package static func completeness(_ fields: HeaderFields) -> Bool? {
    let told = drafts.compactMap { $0.completeness(fields) }
    return told.isEmpty ? nil : !told.contains(false)
  }

  /// Whether a message has a field that only a creation or an append may have, whatever its value.
  package func hasAppendFields(_ fields: HeaderFields) -> Bool {
    fields.contains(UploadFields.offset) || fields.contains(completenessFieldName)
  }

  package func setCompleteness(_ isComplete: Bool, _ fields: inout HeaderFields) {
    fields.append(completenessFieldName, isComplete != invertsCompleteness ? "?1" : "?0")
  }

  /// Adds the interop field, where the version has one.
  package func setVersion(_ fields: inout HeaderFields) {
    if let number { fields.append(Self.fieldName, String(number)) }
  }
}
