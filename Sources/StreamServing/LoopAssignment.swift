// Assigns requests to the loops of a server. Everything about one upload is on one loop, so it needs no locks.

package import HTTPMessages

/// One of a server's loops, and how streams and uploads are distributed among them.
///
/// A stream belongs to the loop that the hash of its files' name selects. An upload's token begins with the same hash
/// of its stream, so both stay on one loop even if the server is restarted with another number of loops.
package struct LoopAssignment: Sendable {
  package let index: Int
  package let count: Int

  package static let only = LoopAssignment(index: 0, count: 1)

  package init(index: Int, count: Int) { (self.index, self.count) = (index, count) }

  /// The loop of a plain request; nil if any loop can serve it.
  package func owner(of head: RequestHead) -> Int? {
    guard head.method == "POST" || head.method == "PUT", let id = head.fields.single("stream-id"),
      StreamName.isValidID(id)
    else { return nil }
    return Int(Self.key(StreamName(path: head.target.path, streamID: id, mediaType: nil))) % count
  }

  /// The loop of an upload; nil if the text is not a valid token.
  package func owner(ofToken token: Substring) -> Int? {
    Self.key(ofToken: token).map { Int($0) % count }
  }

  /// The prefix of all tokens of one stream's uploads, as a number: ``key(_:)`` of the stream. nil if the text is not a
  /// valid token.
  package static func key(ofToken token: some StringProtocol) -> UInt16? {
    let digits = token.prefix(4)
    guard digits.utf8.count == 4 else { return nil }
    return UInt16(digits, radix: 16)
  }

  /// Whether the text may be the token of an upload of this loop. It becomes a component of a path.
  package func isToken(_ text: String) -> Bool {
    text.utf8.count == 32 && text.utf8.allSatisfy { Octet.hexValue($0) != nil } && owns(text)
  }

  /// Whether this loop restores the upload. The first loop restores those that belong to none.
  package func owns(_ token: String) -> Bool { (owner(ofToken: token[...]) ?? 0) == index }

  /// Whether this loop serves the stream.
  package func owns(_ name: StreamName) -> Bool { Int(Self.key(name)) % count == index }

  /// A token that cannot be guessed (112 random bits), for an upload to that stream or to none.
  package func newToken(for name: StreamName?) -> String {
    // Without a stream, any key of this loop will do.
    let key = name.map(Self.key) ?? UInt16(Int.random(in: 0...((0xFFFF - index) / count)) * count + index)
    let digits = String(key, radix: 16)
    return String(repeating: "0", count: 4 - digits.count) + digits + StreamName.randomID().dropFirst(4)
  }

  /// A name that this loop owns, for a stream whose request gives none.
  package func newStreamID(path: String) -> String {
    while true {
      let id = StreamName.randomID()
      // On average, this takes as many attempts as there are loops.
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
