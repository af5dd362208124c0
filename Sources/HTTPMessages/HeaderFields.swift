// The fields of a message, for client and server. An invalid field cannot be created.

/// The fields of a request or a response, in the order in which they arrived.
///
/// Names compare case-insensitively in ASCII (RFC 9110, section 5.1), and keep their spelling (``Field/rawName``).
///
/// Every field here can be sent. Its name is a token, and its value has no control character except the tab (RFC 9110,
/// section 5.5). A field that violates these rules is not added, and ``invalidName`` is its name. A response with such
/// fields is treated as a failure of its handler, and a request with them fails before anything is sent.
public struct HeaderFields: Sendable, Equatable, ExpressibleByDictionaryLiteral {
  /// One field line.
  public struct Field: Sendable, Equatable {
    /// The name as it was received or given. Use ``name`` to compare it.
    public let rawName: String
    /// The value without surrounding white space. Octets that are not UTF-8 are shown as U+FFFD.
    public let value: String

    /// The name in lower case.
    public var name: String {
      // Most names of the server are in lower case, and the conversion would allocate memory for a long one.
      let octets = rawName.utf8.span
      for index in octets.indices where Octet.lowercased(octets[index]) != octets[index] {
        return rawName.lowercasedASCII
      }
      return rawName
    }

    /// Creates a field, without surrounding white space in its value. Nil if the name or the value is invalid.
    public init?(name: String, value: String) {
      // The octets are accessed by index, here and below, because a load test creates the fields of thousands of
      // responses per second, and `allSatisfy` takes several times as many instructions.
      let valueOctets = value.utf8.span
      guard Self.isValid(name: name) else { return nil }
      for index in valueOctets.indices where !Octet.isFieldContent(valueOctets[index]) { return nil }
      let end = valueOctets.count - 1
      let isTrimmed = end < 0 || !Octet.isBlank(valueOctets[0]) && !Octet.isBlank(valueOctets[end])
      self.init(checkedName: name, checkedValue: isTrimmed ? value : Self.trimmed(value))
    }

    /// A field with a name and a value that were checked before.
    package init(checkedName name: String, checkedValue value: String) {
      self.rawName = name
      self.value = value
    }

    /// Whether the name is a token (RFC 9110, section 5.1).
    package static func isValid(name: String) -> Bool {
      let octets = name.utf8.span
      for index in octets.indices where !Octet.isToken(octets[index]) { return false }
      return !octets.isEmpty
    }

    /// Whether the names are equal apart from case, and the values are equal.
    public static func == (a: Field, b: Field) -> Bool { a.isNamed(b.rawName) && a.value == b.value }

    /// Whether this is the field's name, in any case.
    package func isNamed(_ name: String) -> Bool { rawName.isSameWord(as: name) }

    private static func trimmed(_ value: String) -> String {
      var octets = Substring(value).utf8
      while let first = octets.first, Octet.isBlank(first) { octets.removeFirst() }
      while let last = octets.last, Octet.isBlank(last) { octets.removeLast() }
      return String(Substring(octets))
    }

    /// `stream-offset` as `Stream-Offset`, as servers send it. Programs ignore case.
    var displayName: String {
      var octets: [UInt8] = []
      appendDisplayName(to: &octets)
      return String(decoding: octets, as: UTF8.self)
    }

    func appendDisplayName(to octets: inout [UInt8]) {
      var atStart = true
      for octet in rawName.utf8 {
        let octet = Octet.lowercased(octet)
        let isLower = octet &- UInt8(ascii: "a") < 26
        octets.append(atStart && isLower ? octet ^ 0x20 : octet)
        atStart = octet == UInt8(ascii: "-")
      }
      // `Stream-ID` is our only name with an abbreviation.
      if rawName.utf8.count > 2, octets.suffix(3).elementsEqual("-Id".utf8) {
        octets[octets.count - 1] = UInt8(ascii: "D")
      }
    }
  }

  /// All fields, in the order in which they were added.
  public private(set) var all: [Field] = []
  /// The name of the first added field that was invalid. Either the name itself or the value violates the rules. Nil if
  /// every field was valid.
  public private(set) var invalidName: String?

  /// Whether every added field was valid.
  public var isValid: Bool { invalidName == nil }

  /// Creates an empty collection of fields.
  public init() {}

  /// Creates the fields of a literal, in its order. Invalid ones are omitted. See ``invalidName``.
  public init(dictionaryLiteral elements: (String, String)...) {
    for (name, value) in elements { append(name, value) }
  }

  /// Fields as sent by a peer. See ``append(received:_:)``.
  package init(received lines: some Sequence<(name: String, value: String)>) {
    for line in lines { append(received: line.name, line.value) }
  }

  /// Fields from texts of the form `Name: value`. See ``lines``.
  package init(lines: some Sequence<String>) {
    for line in lines {
      let parts = line.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
      append(String(parts[0]), parts.count > 1 ? String(parts[1]) : "")
    }
  }

  /// Each field as `Name: value`.
  package var lines: [String] { all.map { "\($0.rawName): \($0.value)" } }

  /// Adds a field as sent by a peer. An invalid octet in the value is replaced by U+FFFD, so the field remains without
  /// another meaning. A line without a valid name is dropped.
  package mutating func append(received name: String, _ value: String) {
    if let field = Field(name: name, value: value) {
      all.append(field)
    } else {
      let value = String(
        String.UnicodeScalarView(
          value.unicodeScalars.map { $0.isASCII && !Octet.isFieldContent(UInt8($0.value)) ? "\u{FFFD}" : $0 }))
      if let field = Field(name: name, value: value) { all.append(field) }
    }
  }

  package mutating func reserveCapacity(_ count: Int) { all.reserveCapacity(count) }

  /// Adds a field, without surrounding white space in its value. An invalid field is not added. See ``invalidName``.
  public mutating func append(_ name: String, _ value: String) {
    if let field = Field(name: name, value: value) { all.append(field) } else { invalidName = invalidName ?? name }
  }

  package mutating func append(_ field: Field) { all.append(field) }

  package mutating func append(contentsOf other: HeaderFields) {
    all += other.all
    invalidName = invalidName ?? other.invalidName
  }

  /// Adds a field unless a field of that name exists.
  public mutating func addDefault(_ name: String, _ value: String) {
    if !contains(name) { append(name, value) }
  }

  /// All values of that name, joined by commas as in RFC 9110, section 5.2. Nil if there is none.
  public subscript(name: String) -> String? {
    var combined: String?
    for field in all where field.isNamed(name) {
      combined = combined.map { "\($0), \(field.value)" } ?? field.value
    }
    return combined
  }

  package func contains(_ name: String) -> Bool { all.contains { $0.isNamed(name) } }

  /// The value of the first field of that name. Nil if there is none.
  package func first(_ name: String) -> String? { all.first { $0.isNamed(name) }?.value }

  /// The only value of `name`. Nil if there is none, or more than one, because several values of a single-valued field
  /// are ambiguous. Use `count` to distinguish the two cases.
  public func single(_ name: String) -> String? {
    var found: String?
    for field in all where field.isNamed(name) {
      if found != nil { return nil }
      found = field.value
    }
    return found
  }

  /// The number of fields with this `name`.
  public func count(_ name: String) -> Int {
    var count = 0
    for field in all where field.isNamed(name) { count += 1 }
    return count
  }

  /// The fields whose names, in lower case, `isIncluded` accepts. ``invalidName`` stays the same.
  package func filter(_ isIncluded: (String) -> Bool) -> HeaderFields {
    var result = self
    result.all.removeAll { !isIncluded($0.name) }
    return result
  }

  /// The same fields without those of these names.
  package func without(_ names: some Sequence<String>) -> HeaderFields {
    var result = self
    result.all.removeAll { names.contains(where: $0.isNamed) }
    return result
  }
}

extension String {
  /// Whether two words are equal apart from the case of ASCII letters.
  ///
  /// `lowercased()` would turn the Kelvin sign into a k, and Swift's `==` treats some texts with different octets as
  /// equal.
  package func isSameWord(as other: String) -> Bool {
    // The lengths are compared first, because most names differ in them and every message makes many comparisons.
    guard utf8.count == other.utf8.count else { return false }
    // The octets are accessed by index, because `zip` takes a hundred instructions for each.
    let (a, b) = (utf8.span, other.utf8.span)
    for index in a.indices where a[index] != b[index] && Octet.lowercased(a[index]) != Octet.lowercased(b[index]) {
      return false
    }
    return true
  }
}
