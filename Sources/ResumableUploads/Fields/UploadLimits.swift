// Upload-Limit: what a server allows (section "Limits").

package import HTTPMessages

/// The limits of an upload resource; nil where there is none.
package struct UploadLimits: Equatable, Sendable {
  /// The maximum size of the whole representation in bytes.
  package var maximumSize: UInt64?
  package var minimumSize: UInt64?
  /// The maximum size of one request's content in bytes. The minimum does not apply to a creation without content, nor
  /// to the request that completes the upload.
  package var maximumAppendSize: UInt64?
  package var minimumAppendSize: UInt64?
  /// The resource's remaining lifetime in seconds, counted from when the response was made.
  package var maximumAge: UInt64?

  package init() {}

  /// Reads `Upload-Limit`; nil if it is missing, is not a Dictionary, or has a known key whose value is not a
  /// non-negative Integer. The whole field is ignored then. Unknown keys are ignored individually.
  package init?(_ fields: HeaderFields, version: InteropVersion = .newest) {
    guard let text = fields[UploadFields.limit], let dictionary = StructuredDictionary(parsing: text) else {
      return nil
    }
    for member in dictionary.members {
      guard let path = Self.path(member.key, version) else { continue }
      guard case .item(let item) = member.value, case .integer(let value) = item.value, value >= 0 else { return nil }
      self[keyPath: path] = UInt64(value)
    }
  }

  /// The field's value. Without any limit it is `min-size=0`, because a field must not be empty.
  package func value(version: InteropVersion = .newest) -> String {
    var dictionary = StructuredDictionary()
    for key in ["max-size", "min-size", "max-append-size", "min-append-size", version.lifetimeKey] {
      guard let path = Self.path(key, version), let value = self[keyPath: path] else { continue }
      dictionary.set(key, .item(Item(.integer(Int64(clamping: min(value, UInt64(BareItem.largestInteger)))))))
    }
    if dictionary.members.isEmpty { dictionary.set("min-size", .item(Item(.integer(0)))) }
    // Integers in range with our own keys always serialize.
    return dictionary.serialized ?? "min-size=0"
  }

  /// Adds a later message: its limits replace older ones, which stay where it has none.
  package func updated(by newer: UploadLimits) -> UploadLimits {
    var result = self
    for path in Self.all { if let value = newer[keyPath: path] { result[keyPath: path] = value } }
    return result
  }

  private static var all: [WritableKeyPath<UploadLimits, UInt64?>] {
    [\.maximumSize, \.minimumSize, \.maximumAppendSize, \.minimumAppendSize, \.maximumAge]
  }

  private static func path(_ key: String, _ version: InteropVersion) -> WritableKeyPath<UploadLimits, UInt64?>? {
    switch key {
    case "max-size": \.maximumSize
    case "min-size": \.minimumSize
    case "max-append-size": \.maximumAppendSize
    case "min-append-size": \.minimumAppendSize
    case version.lifetimeKey: \.maximumAge
    default: nil
    }
  }
}
