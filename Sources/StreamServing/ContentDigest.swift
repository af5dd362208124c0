// Compares content with the digests that came with it.

package import Digests
internal import EventLoops
package import HTTPMessages

/// A running digest that several owners may share, used by one thread at a time.
package final class SharedDigest: @unchecked Sendable {
  package var running: RunningDigest

  package init(_ algorithm: DigestAlgorithm) { running = RunningDigest(algorithm) }
  package init(copyOf other: SharedDigest) { running = other.running.fork() }

  package func update(_ bytes: Span<UInt8>, _ pieces: [Range<Int>]) {
    for piece in pieces { running.update(bytes.extracting(piece).bytes) }
  }

  package func isEqual(_ value: [UInt8]) -> Bool {
    running.value().bytes == value
  }
}

/// The digest that one request's content must match: its `Content-Digest`, or its `Repr-Digest` if it is the whole
/// representation. Only on the loop's thread.
package final class ContentDigest {
  private let expected: [[UInt8]]
  private let running: [SharedDigest]

  /// nil if there is no digest of a known algorithm.
  package init?(_ fields: HeaderFields, isWhole: Bool = false) {
    let names = isWhole ? [DigestField.content, DigestField.representation] : [DigestField.content]
    let given = names.flatMap { name in fields[name].flatMap { DigestField(parsing: $0) }?.digests ?? [] }
    var (expected, running): ([[UInt8]], [SharedDigest]) = ([], [])
    for member in given {
      guard let algorithm = DigestAlgorithm(name: member.algorithm) else { continue }
      expected.append(member.value)
      running.append(SharedDigest(algorithm))
    }
    if running.isEmpty { return nil }
    (self.expected, self.running) = (expected, running)
  }

  package func update(_ bytes: Span<UInt8>, _ pieces: [Range<Int>]) {
    for digest in running { digest.update(bytes, pieces) }
  }

  /// The SHA-256 of the content so far; nil if none was stated for it.
  package var sha256: [UInt8]? {
    running.first { $0.running.algorithm == .sha256 }.map { $0.running.value().bytes }
  }

  package var isRight: Bool { zip(running, expected).allSatisfy { $0.isEqual($1) } }
}
