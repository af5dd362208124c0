// Uploads that an earlier server has left and that cannot be read now: which they are, and into which streams they may
// go. Pure.

internal import StreamServing

/// Their tokens, and how many go into streams with the same key (``LoopAssignment/key(ofToken:)``).
struct PostponedUploads {
  private(set) var tokens: Set<String> = []
  private var counts: [UInt16?: Int] = [:]

  var isEmpty: Bool { tokens.isEmpty }

  func contains(_ token: String) -> Bool { tokens.contains(token) }

  /// Whether it was not among them.
  mutating func insert(_ token: String) -> Bool {
    guard tokens.insert(token).inserted else { return false }
    counts[LoopAssignment.key(ofToken: token), default: 0] += 1
    return true
  }

  /// Whether it was among them.
  mutating func remove(_ token: String) -> Bool {
    guard tokens.remove(token) != nil else { return false }
    let key = LoopAssignment.key(ofToken: token)
    let count = counts[key, default: 0] - 1
    counts[key] = count > 0 ? count : nil
    return true
  }

  /// Whether one of them may go into a stream with that key; nil for one that any may go into.
  func mayGoInto(_ key: UInt16?) -> Bool {
    guard let key else { return !isEmpty }
    return counts[key] != nil || counts[nil] != nil
  }
}
