// Uploads of an earlier server that cannot be read now, and the streams that they may belong to. Pure.

internal import StreamServing

/// Their tokens, and how many go into streams with the same key (``LoopAssignment/key(ofToken:)``).
struct PostponedUploads {
  private(set) var tokens: Set<String> = []
  private var counts: [UInt16?: Int] = [:]

  var isEmpty: Bool { tokens.isEmpty }

  func contains(_ token: String) -> Bool { tokens.contains(token) }

  /// Returns whether it was added now.
  mutating func insert(_ token: String) -> Bool {
    guard tokens.insert(token).inserted else { return false }
    counts[LoopAssignment.key(ofToken: token), default: 0] += 1
    return true
  }

  /// Returns whether it was present.
  mutating func remove(_ token: String) -> Bool {
    guard tokens.remove(token) != nil else { return false }
    let key = LoopAssignment.key(ofToken: token)
    let count = counts[key, default: 0] - 1
    counts[key] = count > 0 ? count : nil
    return true
  }

  /// Whether one of them may belong to a stream with that key. nil stands for a stream that any of them may belong to.
  func mayGoInto(_ key: UInt16?) -> Bool {
    guard let key else { return !isEmpty }
    return counts[key] != nil || counts[nil] != nil
  }
}
