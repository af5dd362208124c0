// Digests in fields (RFC 9530): the algorithm and the value. Another module computes them.

/// `Repr-Digest` and `Content-Digest`: a dictionary of byte sequences, keyed by algorithm (RFC 9530, sections 2 and 3).
package struct DigestField: Equatable, Sendable {
  package static let representation = "Repr-Digest"
  package static let content = "Content-Digest"
  package static let wantRepresentation = "Want-Repr-Digest"

  /// Keys such as `sha-256`, with the digest's octets.
  package var digests: [(algorithm: String, value: [UInt8])]

  package static func == (a: DigestField, b: DigestField) -> Bool {
    a.digests.elementsEqual(b.digests) { $0.algorithm == $1.algorithm && $0.value == $1.value }
  }

  package init(_ digests: [(algorithm: String, value: [UInt8])]) { self.digests = digests }

  /// nil if the text is not a dictionary of byte sequences.
  package init?(parsing text: String) {
    guard let dictionary = StructuredDictionary(parsing: text) else { return nil }
    digests = []
    for member in dictionary.members {
      guard case .item(let item) = member.value, case .bytes(let value) = item.value else { return nil }
      digests.append((member.key, value))
    }
  }

  package subscript(algorithm: String) -> [UInt8]? { digests.first { $0.algorithm == algorithm }?.value }

  package var value: String {
    digests.map { "\($0.algorithm)=\(BareItem.bytes($0.value).serialized ?? "::")" }.joined(separator: ", ")
  }

  /// The algorithms that a `Want-…-Digest` requests (section 4), in descending order of preference. Algorithms with
  /// preference 0 are left out.
  package static func wanted(parsing text: String) -> [String] {
    guard let dictionary = StructuredDictionary(parsing: text) else { return [] }
    var preferences: [(algorithm: String, preference: Int64)] = []
    for member in dictionary.members {
      guard case .item(let item) = member.value, case .integer(let preference) = item.value,
        (0...10).contains(preference)
      else { return [] }
      if preference > 0 { preferences.append((member.key, preference)) }
    }
    // The order is stable: among equal preferences, the first one named comes first.
    return preferences.enumerated().sorted { ($1.element.preference, $0.offset) < ($0.element.preference, $1.offset) }
      .map(\.element.algorithm)
  }
}
