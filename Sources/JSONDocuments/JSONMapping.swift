// Types that are written as JSON and read again. Each lists its members once for both directions, so that the two
// cannot differ.

/// A value of a document and the way to it.
package struct JSONNode {
  package let value: JSONValue
  package let path: JSONPath

  package init(value: JSONValue, path: JSONPath) {
    self.value = value
    self.path = path
  }

  /// - Parameter expected: the expected value.
  package func error(expected: String) -> DocumentError {
    DocumentError(path: path, problem: "\(expected), not \(value.kind)")
  }

  package func error(_ problem: String) -> DocumentError { DocumentError(path: path, problem: problem) }

  package func members() throws(DocumentError) -> [JSONValue.Member] {
    guard case .object(let members) = value else { throw error(expected: "an object") }
    return members
  }

  package func elements() throws(DocumentError) -> [JSONNode] {
    guard case .array(let values) = value else { throw error(expected: "a list") }
    return values.enumerated().map { JSONNode(value: $1, path: path.appending(.index($0))) }
  }
}

/// A type that can be written as JSON and read again.
package protocol JSONMapped {
  var jsonValue: JSONValue { get }
  init(json: JSONNode) throws(DocumentError)
}

/// A type that is an object in JSON.
package protocol JSONObject: JSONMapped {
  init()
  /// Names every member.
  mutating func map(_ member: inout JSONMembers) throws(DocumentError)
}

extension JSONObject {
  package var jsonValue: JSONValue {
    var copy = self
    var members = JSONMembers()
    // Nothing is read, so no value can be invalid.
    try? copy.map(&members)
    return .object(members.written)
  }

  package init(json: JSONNode) throws(DocumentError) {
    self.init()
    var members = try JSONMembers(reading: json)
    try map(&members)
  }
}

/// The members of an object, while it is written or read.
package struct JSONMembers {
  fileprivate(set) var written: [JSONValue.Member] = []
  private let source: JSONNode?
  private let found: [String: JSONValue]
  /// The keys that the type knows, in order.
  private(set) var known: [String] = []

  init() {
    source = nil
    found = [:]
  }

  package init(reading source: JSONNode) throws(DocumentError) {
    self.source = source
    found = Dictionary(try source.members().map { ($0.key, $0.value) }) { $1 }
  }

  /// A required member.
  package mutating func callAsFunction(_ key: String, _ value: inout some JSONMapped) throws(DocumentError) {
    if try !mapIfPresent(key, &value) {
      throw DocumentError(path: source?.path.appending(.key(key)), problem: "is missing")
    }
  }

  /// A member that may be missing, and is omitted when it is nil.
  package mutating func optional<Value: JSONMapped>(_ key: String, _ value: inout Value?) throws(DocumentError) {
    known.append(key)
    guard let source else {
      if let value { written.append(.init(key: key, value: value.jsonValue)) }
      return
    }
    guard let present = found[key], present != .null else {
      value = nil
      return
    }
    value = try Value(json: JSONNode(value: present, path: source.path.appending(.key(key))))
  }

  /// A member that keeps its default when it is missing.
  ///
  /// - Returns: whether it was present.
  @discardableResult
  package mutating func mapIfPresent<Value: JSONMapped>(_ key: String, _ value: inout Value) throws(DocumentError)
    -> Bool
  {
    known.append(key)
    guard let source else {
      written.append(.init(key: key, value: value.jsonValue))
      return true
    }
    guard let present = found[key] else { return false }
    value = try Value(json: JSONNode(value: present, path: source.path.appending(.key(key))))
    return true
  }

  /// An error at the location of a value.
  package func error(_ problem: String, at key: String? = nil) -> DocumentError {
    DocumentError(path: key.map { source?.path.appending(.key($0)) } ?? source?.path, problem: problem)
  }

  /// An unknown key is probably misspelt, and its default would be used silently.
  package func refuseUnknownKeys() throws(DocumentError) {
    guard let source else { return }
    for member in try source.members() where !known.contains(member.key) {
      throw DocumentError(
        path: source.path.appending(.key(member.key)),
        problem: "is an unknown key. The nearest is \(Spelling.nearest(to: member.key, of: known))")
    }
  }
}

// MARK: Plain values

extension Bool: JSONMapped {
  package var jsonValue: JSONValue { .bool(self) }
  package init(json: JSONNode) throws(DocumentError) {
    guard case .bool(let value) = json.value else { throw json.error(expected: "true or false") }
    self = value
  }
}

extension String: JSONMapped {
  package var jsonValue: JSONValue { .string(self) }
  package init(json: JSONNode) throws(DocumentError) {
    guard case .string(let text) = json.value else { throw json.error(expected: "a string") }
    self = text
  }
}

extension Double: JSONMapped {
  package var jsonValue: JSONValue { .number(self) }
  package init(json: JSONNode) throws(DocumentError) {
    switch json.value {
    case .number(let value): self = value
    case .integer(let value): self = Double(value)
    default: throw json.error(expected: "a number")
    }
  }
}

/// Durations, which have no sign in a document.
extension Int64: JSONMapped {
  package var jsonValue: JSONValue { .integer(self) }
  package init(json: JSONNode) throws(DocumentError) {
    guard case .integer(let value) = json.value, value >= 0 else {
      throw json.error(expected: "a whole number of 0 or more")
    }
    self = value
  }
}

extension Int: JSONMapped {
  package var jsonValue: JSONValue { .integer(Int64(self)) }
  package init(json: JSONNode) throws(DocumentError) { self = Int(try Int64(json: json)) }
}

/// Counts: at most 2⁵³, so that every program reads them, and no sum of them can overflow.
extension UInt64: JSONMapped {
  package var jsonValue: JSONValue { .integer(Int64(clamping: self)) }
  package init(json: JSONNode) throws(DocumentError) {
    guard case .integer(let value) = json.value, (0...1 << 53).contains(value) else {
      throw json.error(expected: "a whole number from 0 to 2⁵³")
    }
    self = UInt64(value)
  }
}

extension Array: JSONMapped where Element: JSONMapped {
  package var jsonValue: JSONValue { .array(map(\.jsonValue)) }
  package init(json: JSONNode) throws(DocumentError) {
    self = []
    for element in try json.elements() { append(try Element(json: element)) }
  }
}

extension Dictionary: JSONMapped where Key == String, Value: JSONMapped {
  package var jsonValue: JSONValue {
    .object(sorted { $0.key < $1.key }.map { .init(key: $0.key, value: $0.value.jsonValue) })
  }
  package init(json: JSONNode) throws(DocumentError) {
    self = [:]
    for member in try json.members() {
      self[member.key] = try Value(json: JSONNode(value: member.value, path: json.path.appending(.key(member.key))))
    }
  }
}
