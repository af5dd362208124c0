// Computes the digests of a recording in one read, for the server that writes its sidecar and for readers that compare.

package import Digests

/// The digests of a file in its stored and its received form. One thread at a time.
package final class RecordingDigests: @unchecked Sendable {
  /// How many bytes are read before other work gets its turn, about 10 ms of hashing.
  package static let slice: UInt64 = 8 << 20

  private let receivedHead: [UInt8]
  private var stored: RunningDigest
  private var received: RunningDigest?

  /// - Parameter receivedHead: empty if the file is stored as received.
  package init(receivedHead: [UInt8]) {
    self.receivedHead = receivedHead
    stored = RunningDigest(.sha256)
    if !receivedHead.isEmpty {
      received = RunningDigest(.sha256)
      received?.update(receivedHead.span.bytes)
    }
  }

  /// The number of bytes of the file so far.
  package var byteCount: UInt64 { stored.byteCount }

  /// Adds the next bytes of the file.
  package func update(_ bytes: RawSpan) {
    if received != nil {
      let head = UInt64(receivedHead.count)
      let skipped = Int(head - min(head, stored.byteCount))
      if skipped < bytes.byteCount { received?.update(bytes.extracting(skipped..<bytes.byteCount)) }
    }
    stored.update(bytes)
  }

  /// The digests of the bytes so far.
  package func values() -> (received: Digest, stored: Digest) {
    let value = stored.value()
    return (received?.value() ?? value, value)
  }
}
