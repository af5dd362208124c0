// Reads the JSON of a sidecar with Jansson, a parser that is fuzzed widely.

internal import CJansson

/// One object of a document, with access to its members by type. The document lives as long as any of its objects.
struct SidecarJSON {
  private final class Document {
    let root: UnsafeMutablePointer<json_t>
    init(_ root: UnsafeMutablePointer<json_t>) { self.root = root }
    deinit { json_decref(root) }
  }

  private let document: Document
  private let json: UnsafeMutablePointer<json_t>

  init(_ text: [UInt8]) throws(SidecarError) {
    var failure = json_error_t()
    let parsed = text.withUnsafeBytes {
      $0.withMemoryRebound(to: CChar.self) {
        json_loadb($0.baseAddress, $0.count, Int(JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL), &failure)
      }
    }
    guard let parsed else {
      let message = withUnsafeBytes(of: failure.text) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      throw SidecarError(problem: "not JSON: \(message)")
    }
    document = Document(parsed)
    json = parsed
    guard json.pointee.type == JSON_OBJECT else { throw SidecarError(problem: "not a JSON object") }
  }

  private init(_ document: Document, _ json: UnsafeMutablePointer<json_t>) {
    (self.document, self.json) = (document, json)
  }

  private func member(_ key: String, _ type: json_type...) throws(SidecarError) -> UnsafeMutablePointer<json_t>? {
    guard let value = json_object_get(json, key), value.pointee.type != JSON_NULL else { return nil }
    guard type.contains(value.pointee.type) else { throw SidecarError(problem: "\"\(key)\" has the wrong type") }
    return value
  }

  func text(_ key: String) throws(SidecarError) -> String? {
    try member(key, JSON_STRING).flatMap { json in
      json_string_value(json).map {
        String(decoding: UnsafeRawBufferPointer(start: $0, count: json_string_length(json)), as: UTF8.self)
      }
    }
  }

  func integer(_ key: String) throws(SidecarError) -> Int64? {
    try member(key, JSON_INTEGER).map { Int64(json_integer_value($0)) }
  }

  func count(_ key: String) throws(SidecarError) -> UInt64? {
    guard let number = try integer(key) else { return nil }
    guard number >= 0 else { throw SidecarError(problem: "\"\(key)\" is negative") }
    return UInt64(number)
  }

  func flag(_ key: String) throws(SidecarError) -> Bool? {
    try member(key, JSON_TRUE, JSON_FALSE).map { $0.pointee.type == JSON_TRUE }
  }

  func object(_ key: String) throws(SidecarError) -> SidecarJSON? {
    try member(key, JSON_OBJECT).map { SidecarJSON(document, $0) }
  }

  func objects(_ key: String) throws(SidecarError) -> [SidecarJSON] {
    guard let list = try member(key, JSON_ARRAY) else { return [] }
    var objects: [SidecarJSON] = []
    for index in 0..<json_array_size(list) {
      guard let element = json_array_get(list, index), element.pointee.type == JSON_OBJECT else {
        throw SidecarError(problem: "\"\(key)\" is not a list of objects")
      }
      objects.append(SidecarJSON(document, element))
    }
    return objects
  }
}
