// Reads a line that `JSONLine` has written. The processes of Sluice communicate with such lines. Jansson parses them.

internal import CJansson

/// One flat JSON object (RFC 8259) whose values are strings, whole numbers, `true`, `false`, or lists of strings.
///
/// Everything else is rejected: nested objects, fractions, `null`, duplicate keys, and text after the object.
package struct FlatJSON: Equatable, Sendable {
  package enum Value: Equatable, Sendable {
    case string(String)
    case integer(Int64)
    case flag(Bool)
    case strings([String])
  }

  package private(set) var values: [String: Value] = [:]

  /// Nil if the line is not such an object. Spaces between its parts are allowed.
  package init?(_ line: some Collection<UInt8>) {
    let root = Array(line).withUnsafeBytes {
      $0.withMemoryRebound(to: CChar.self) {
        json_loadb($0.baseAddress, $0.count, Int(JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL), nil)
      }
    }
    guard let root else { return nil }
    defer { json_decref(root) }
    guard root.pointee.type == JSON_OBJECT else { return nil }
    var member = json_object_iter(root)
    while let current = member {
      guard let key = json_object_iter_key(current), let json = json_object_iter_value(current), let value = Value(json)
      else { return nil }
      values[String(cString: key)] = value
      member = json_object_iter_next(root, current)
    }
  }

  package func string(_ key: String) -> String? {
    if case .string(let text)? = values[key] { text } else { nil }
  }

  package func integer<Number: FixedWidthInteger>(_ key: String, as type: Number.Type = Number.self) -> Number? {
    if case .integer(let number)? = values[key] { Number(exactly: number) } else { nil }
  }

  package func flag(_ key: String) -> Bool? {
    if case .flag(let flag)? = values[key] { flag } else { nil }
  }

  package func strings(_ key: String) -> [String]? {
    if case .strings(let list)? = values[key] { list } else { nil }
  }
}

extension FlatJSON.Value {
  fileprivate init?(_ json: UnsafeMutablePointer<json_t>) {
    switch json.pointee.type {
    case JSON_STRING:
      guard let text = json.text else { return nil }
      self = .string(text)
    case JSON_INTEGER: self = .integer(Int64(json_integer_value(json)))
    case JSON_TRUE, JSON_FALSE: self = .flag(json.pointee.type == JSON_TRUE)
    case JSON_ARRAY:
      var list: [String] = []
      for index in 0..<json_array_size(json) {
        guard let text = json_array_get(json, index)?.text else { return nil }
        list.append(text)
      }
      self = .strings(list)
    default: return nil
    }
  }
}

extension UnsafeMutablePointer<json_t> {
  /// Nil if it is not a string. Jansson has checked its UTF-8.
  fileprivate var text: String? {
    json_string_value(self).map {
      String(decoding: UnsafeRawBufferPointer(start: $0, count: json_string_length(self)), as: UTF8.self)
    }
  }
}
