// Structured field values (RFC 9651) as values.
//
// Debian has no package for Swift or C that parses them, and the protocol's own fields are parsed strictly.

/// An item without its parameters (RFC 9651, section 3.3).
package enum BareItem: Equatable, Sendable {
  /// -999,999,999,999,999 to 999,999,999,999,999 (section 3.3.1).
  case integer(Int64)
  /// In thousandths: at most twelve digits before the point and three after it (section 3.3.2).
  case decimal(thousandths: Int64)
  /// Printable ASCII (section 3.3.3).
  case string(String)
  case token(String)
  /// Base64 between colons (section 3.3.5).
  case bytes([UInt8])
  case boolean(Bool)
  /// Seconds since 1970 (section 3.3.7).
  case date(Int64)
  /// Any Unicode text (section 3.3.8).
  case displayString(String)

  /// The largest integer that a structured field can hold.
  package static let largestInteger: Int64 = 999_999_999_999_999
}

/// A key and its value after an item (RFC 9651, section 3.1.2).
package struct Parameter: Equatable, Sendable {
  package var key: String
  package var value: BareItem

  package init(key: String, value: BareItem) {
    self.key = key
    self.value = value
  }
}

/// An item with its parameters, in order, with distinct keys.
package struct Item: Equatable, Sendable {
  package var value: BareItem
  package var parameters: [Parameter]

  package init(_ value: BareItem, _ parameters: [Parameter] = []) {
    self.value = value
    self.parameters = parameters
  }

  /// Reads a field that is an item; nil if the text is not exactly one item (section 4.2).
  package init?(parsing text: String) {
    // Every acknowledgement has such a field. This path needs no memory, unlike the whole grammar.
    if let integer = StructuredFieldParser.plainInteger(text) {
      self.init(.integer(integer))
      return
    }
    var parser = StructuredFieldParser(text)
    guard let item = parser.field({ $0.item() }) else { return nil }
    self = item
  }
}

/// A dictionary's members, in order, with distinct keys (RFC 9651, section 3.2).
package struct StructuredDictionary: Equatable, Sendable {
  package enum Value: Equatable, Sendable {
    case item(Item)
    case innerList([Item], parameters: [Parameter])
  }

  package struct Member: Equatable, Sendable {
    package var key: String
    package var value: Value
  }

  package private(set) var members: [Member] = []

  package init() {}

  /// A dictionary of members with distinct keys.
  init(distinct members: [Member]) { self.members = members }

  /// Reads a field that is a dictionary; nil if the text is not exactly one dictionary (section 4.2). The empty text is
  /// an empty dictionary.
  package init?(parsing text: String) {
    var parser = StructuredFieldParser(text)
    guard let dictionary = parser.field({ $0.dictionary() }) else { return nil }
    self = dictionary
  }

  package subscript(key: String) -> Value? { members.first { $0.key == key }?.value }

  /// Sets a member. An existing member keeps its place.
  package mutating func set(_ key: String, _ value: Value) {
    // RFC 9651, section 4.2.2, step 6: the earlier value is overwritten, in its place.
    if let index = members.firstIndex(where: { $0.key == key }) {
      members[index].value = value
    } else {
      members.append(Member(key: key, value: value))
    }
  }
}
