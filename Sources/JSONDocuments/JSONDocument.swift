// Reads JSON with Jansson, a widely fuzzed parser that reports the line of each error. The parser of
// FoundationEssentials takes 0.8 MiB more resident memory, and reports no line.

internal import CJansson

/// One parsed document.
package struct JSONDocument {
  let root: JSONNode
  private let text: [UInt8]
  private let file: String

  /// - Parameters:
  ///   - root: the root's name in the paths of errors: `profile`, `report`.
  ///   - file: the name at the beginning of each error.
  package init(_ text: [UInt8], root: String, file: String) throws(DocumentError) {
    var failure = json_error_t()
    let parsed = text.withUnsafeBytes {
      $0.withMemoryRebound(to: CChar.self) {
        // Text from a peer may contain NULs. A duplicate key is a mistake that would otherwise stay unnoticed.
        json_loadb($0.baseAddress, $0.count, Int(JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL), &failure)
      }
    }
    guard let parsed else {
      let message = withUnsafeBytes(of: failure.text) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      throw DocumentError(
        file: file, line: failure.line > 0 ? Int(failure.line) : nil, problem: "not JSON: \(message)")
    }
    defer { json_decref(parsed) }
    self.root = JSONNode(value: Self.value(parsed), path: JSONPath(root: root))
    self.text = text
    self.file = file
  }

  /// Reads a value out of the document. An error contains the file and the line.
  package func read<Value>(_ body: (JSONNode) throws(DocumentError) -> Value) throws(DocumentError) -> Value {
    do throws(DocumentError) { return try body(root) } catch {
      var located = error
      located.file = file
      located.line = error.path.flatMap { JSONLocator.line(of: $0, in: text) }
      throw located
    }
  }

  /// The recursion is bounded, because Jansson rejects more than 2048 levels.
  private static func value(_ json: UnsafeMutablePointer<json_t>) -> JSONValue {
    switch json.pointee.type {
    case JSON_OBJECT:
      var members: [JSONValue.Member] = []
      var iterator = json_object_iter(json)
      while let current = iterator {
        if let key = json_object_iter_key(current), let value = json_object_iter_value(current) {
          members.append(.init(key: String(cString: key), value: Self.value(value)))
        }
        iterator = json_object_iter_next(json, current)
      }
      return .object(members)
    case JSON_ARRAY:
      return .array((0..<json_array_size(json)).compactMap { json_array_get(json, $0).map(Self.value) })
    case JSON_STRING:
      guard let bytes = json_string_value(json) else { return .string("") }
      let buffer = UnsafeRawBufferPointer(start: bytes, count: json_string_length(json))
      return .string(String(decoding: buffer, as: UTF8.self))
    case JSON_INTEGER: return .integer(json_integer_value(json))
    case JSON_REAL: return .number(json_real_value(json))
    case JSON_TRUE: return .bool(true)
    case JSON_FALSE: return .bool(false)
    default: return .null
    }
  }
}
