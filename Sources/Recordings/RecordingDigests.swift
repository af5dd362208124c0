// Computes the digests of a recording in one read, for the server that writes its sidecar and for readers that compare.

package import Digests

/// The digests of a file in its stored and its received form. One thread at a time.
package final class RecordingDigests: @unchecked Sendable {
  /// How many bytes are read before other work gets its turn, about 10 ms of hashing.
  package static let slice: UInt64 = 8 << 20

  private let receivedHead: [UInt8]
  private let fileLength: UInt64
  /// The beginning of the file, until it is as long as ``receivedHead``.
  private var head: [UInt8] = []
  private var stored: RunningDigest
  private var received: RunningDigest?

  /// - Parameters:
  ///   - receivedHead: the head as it was read before its correction. Empty if the file is stored as received.
  ///   - fileLength: in bytes.
  package init(receivedHead: [UInt8], fileLength: UInt64) {
    (self.receivedHead, self.fileLength) = (receivedHead, fileLength)
    stored = RunningDigest(.sha256)
    if !receivedHead.isEmpty { received = RunningDigest(.sha256) }
  }

  /// The number of bytes of the file so far.
  package var byteCount: UInt64 { stored.byteCount }

  /// Adds the next bytes of the file.
  package func update(_ bytes: RawSpan) {
    stored.update(bytes)
    guard received != nil else { return }
    let count = min(bytes.byteCount, receivedHead.count - head.count)
    if count > 0 {
      bytes.extracting(0..<count).withUnsafeBytes { head += $0 }
      if head.count == receivedHead.count {
        let beginning = headAsReceived
        received?.update(beginning)
      }
    }
    if count < bytes.byteCount { received?.update(bytes.extracting(count..<bytes.byteCount)) }
  }

  /// A head that is not the corrected one is either in its received form, or damaged. It then counts as it is.
  private var headAsReceived: [UInt8] { WAVHead(receivedHead)?.undoing(head, fileLength: fileLength) ?? head }

  /// The digests of the bytes so far, which include the whole head.
  package func values() -> (received: Digest, stored: Digest) {
    let value = stored.value()
    return (received?.value() ?? value, value)
  }
}
