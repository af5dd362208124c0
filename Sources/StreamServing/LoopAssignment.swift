// Which loop a request belongs to, where a server has several. What one upload needs is on one loop, so nothing of it
// is locked.

package import HTTPMessages

/// One of a server's loops, and how streams and uploads are shared out among them.
///
/// A stream belongs to the loop that its files' name is hashed to. An upload's token begins with the same hash, of the
/// stream that it goes into, so that the two are together whatever the number of loops is when the server is started
/// again.
package struct LoopAssignment: Sendable {
  package let index: Int
  package let count: Int

  package static let only = LoopAssignment(index: 0, count: 1)

  package init(index: Int, count: Int) { (self.index, self.count) = (index, count) }

  /// The loop of a plain request; nil where any can serve it.
  package func owner(of head: RequestHead) -> Int? {
    guard head.method == "POST" || head.method == "PUT", let id = head.fields.single("stream-id"),
      StreamName.isValidID(id)
    else { return nil }
    return Int(Self.key(StreamName(path: head.target.path, streamID: id, mediaType: nil))) % count
  }

  /// The loop of an upload; nil if the text is no token of ours.
  package func owner(ofToken token: Substring) -> Int? {
    Self.key(ofToken: token).map { Int($0) % count }
  }

  /// What the tokens of all uploads of one stream begin with, as a number: ``key(_:)`` of the stream. nil if the text is
  /// no token of ours.
  package static func key(ofToken token: some StringProtocol) -> UInt16? {
    let digits = token.prefix(4)
    guard digits.utf8.count == 4 else { return nil }
    return UInt16(digits, radix: 16)
  }

  /// Whether the text may be the token of an upload of this loop: what it names is a component of a path.
  package func isToken(_ text: String) -> Bool {
    text.utf8.count == 32 && text.utf8.allSatisfy { Octet.hexValue($0) != nil } && owns(text)
  }

  /// Whether what is kept of an upload is this loop's to take up. What is nobody's is the first one's.
  package func owns(_ token: String) -> Bool { (owner(ofToken: token[...]) ?? 0) == index }

  /// Whether a stream is this loop's to serve.
  package func owns(_ name: StreamName) -> Bool { Int(Self.key(name)) % count == index }

  /// A token that cannot be guessed (112 random bits), of an upload that goes into that stream, or into none.
  package func newToken(for name: StreamName?) -> String {
    // Without a stream any key that this loop owns will do.
    let key = name.map(Self.key) ?? UInt16(Int.random(in: 0...((0xFFFF - index) / count)) * count + index)
    let digits = String(key, radix: 16)
    return String(repeating: "0", count: 4 - digits.count) + digits + StreamName.randomID().dropFirst(4)
  }

  /// A name for a stream of a request that gives none, such that this loop owns it.
  package func newStreamID(path: String) -> String {
    while true {
      let id = StreamName.randomID()
      // As many attempts as there are loops, in the mean.
      if count == 1 || Int(Self.key(StreamName(path: path, streamID: id, mediaType: nil))) % count == index {
        return id
      }
    }
  }

  /// FNV-1a, folded to 16 bits: the same in every process, unlike Swift's hashes.
  package static func key(_ name: StreamName) -> UInt16 {
    var hash: UInt32 = 2_166_136_261
    for octet in name.base.utf8 { hash = (hash ^ UInt32(octet)) &* 16_777_619 }
    return UInt16(truncatingIfNeeded: hash ^ hash >> 16)
  }
}
