// The fields of a request about its stream: its ID, and where the body begins in it.

package import HTTPMessages

/// `Stream-ID` and `Stream-Offset` of a request.
package struct StreamRequestFields {
  /// One to 64 of `[A-Za-z0-9._-]`, not beginning with a dot; nil if the request has none.
  package private(set) var id: String?
  /// In bytes; 0 if the request has none.
  package private(set) var offset: UInt64 = 0

  /// Why the fields cannot be understood.
  package struct Flaw: Error {
    package var reason: String
  }

  package init(_ fields: HeaderFields) throws(Flaw) {
    guard fields.count("stream-id") <= 1, fields.count("stream-offset") <= 1 else {
      throw Flaw(reason: "Stream-ID and Stream-Offset may be given once")
    }
    id = fields.single("stream-id")
    if let id, !StreamName.isValidID(id) {
      throw Flaw(
        reason:
          "a Stream-ID is one to 64 letters, digits, dots, underscores and hyphens, and does not begin with a dot")
    }
    guard let position = fields.single("stream-offset") else { return }
    guard !position.isEmpty, position.utf8.allSatisfy({ Octet.isDigit($0) }), let number = UInt64(position) else {
      throw Flaw(reason: "a Stream-Offset is a number of bytes below 2^64")
    }
    guard id != nil || number == 0 else {
      throw Flaw(reason: "a Stream-Offset requires a Stream-ID that names its stream")
    }
    offset = number
  }
}
