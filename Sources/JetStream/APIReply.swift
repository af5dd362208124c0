// The JSON answers of JetStream's API, parsed by Jansson, which has been fuzzed extensively.

internal import CJansson
internal import EventLoops

/// One object of an answer. The document lives as long as any object of it.
struct APIReply {
  private final class Document {
    let root: UnsafeMutablePointer<json_t>
    init(_ root: UnsafeMutablePointer<json_t>) { self.root = root }
    deinit { json_decref(root) }
  }

  private let document: Document
  private let json: UnsafeMutablePointer<json_t>

  /// - Throws: ``BrokerError/invalidReply(_:)``, or ``BrokerError/refused(code:number:reason:)`` for an error reply.
  init(_ text: [UInt8]) throws(BrokerError) {
    var failure = json_error_t()
    let parsed = text.withUnsafeBytes {
      json_loadb($0.baseAddress?.assumingMemoryBound(to: CChar.self), $0.count, Int(JSON_ALLOW_NUL), &failure)
    }
    guard let parsed else { throw .invalidReply("not JSON") }
    document = Document(parsed)
    json = parsed
    guard json.pointee.type == JSON_OBJECT else { throw .invalidReply("not a JSON object") }
    guard let error = self["error"] else { return }
    throw .refused(
      code: Int(clamping: error.integer("code") ?? 0), number: Int(clamping: error.integer("err_code") ?? 0),
      reason: error.text("description") ?? "no reason given")
  }

  private init(_ document: Document, _ json: UnsafeMutablePointer<json_t>) {
    (self.document, self.json) = (document, json)
  }

  /// The object with this key.
  subscript(key: String) -> APIReply? {
    guard let value = json_object_get(json, key), value.pointee.type == JSON_OBJECT else { return nil }
    return APIReply(document, value)
  }

  func text(_ key: String) -> String? { json_object_get(json, key).flatMap(Self.text) }

  func texts(_ key: String) -> [String] {
    guard let list = json_object_get(json, key) else { return [] }
    return (0..<json_array_size(list)).compactMap { json_array_get(list, $0).flatMap(Self.text) }
  }

  func objects(_ key: String) -> [APIReply] {
    guard let list = json_object_get(json, key) else { return [] }
    return (0..<json_array_size(list)).compactMap { index in
      guard let value = json_array_get(list, index), value.pointee.type == JSON_OBJECT else { return nil }
      return APIReply(document, value)
    }
  }

  func integer(_ key: String) -> Int64? {
    guard let value = json_object_get(json, key), value.pointee.type == JSON_INTEGER else { return nil }
    return Int64(json_integer_value(value))
  }

  /// A time in UTC, in nanoseconds since 1970. Brokers omit zeros at the end of its fraction.
  func time(_ key: String) -> Int64? {
    guard let text = self.text(key), text.hasSuffix("Z"),
      let seconds = WallClock(iso8601: String(text.prefix(19)))?.seconds
    else { return nil }
    let fraction = text.dropFirst(19).dropLast()
    let digits = fraction.dropFirst()
    guard fraction.isEmpty || fraction.first == ".", digits.count <= 9,
      let nanoseconds = Int64("\(digits)\(String(repeating: "0", count: 9 - digits.count))")
    else { return nil }
    return seconds.multipliedSaturated(by: 1_000_000_000).addingSaturated(nanoseconds)
  }

  func flag(_ key: String) -> Bool {
    guard let value = json_object_get(json, key) else { return false }
    return value.pointee.type == JSON_TRUE
  }

  private static func text(_ value: UnsafeMutablePointer<json_t>) -> String? {
    json_string_value(value).map {
      String(decoding: UnsafeRawBufferPointer(start: $0, count: json_string_length(value)), as: UTF8.self)
    }
  }
}
