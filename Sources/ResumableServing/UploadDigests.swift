// Digests of an upload (RFC 9530): of the whole, across requests and restarts, and of one request's content.

internal import Digests
internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import StreamServing

/// The digests of a representation. It processes bytes as they arrive. Earlier bytes, or those that arrived while it
/// was behind, are read again from the disk in the background. Only on the loop's thread.
final class UploadDigests {
  /// How many bytes it may be behind and still catch up without a thread.
  private static let smallGap: UInt64 = 1 << 20
  /// How many bytes the worker reads before others get their turn, about 20 ms of hashing.
  private static let slice: UInt64 = 8 << 20

  /// The values of the creation's `Repr-Digest` that we can verify. Unknown algorithms are ignored (RFC 9530, section
  /// 2).
  private let expected: [(algorithm: DigestAlgorithm, value: [UInt8])]
  /// The digest in answers: the first that `Want-Repr-Digest` requests and we support.
  private let wanted: DigestAlgorithm?
  private var running: [DigestAlgorithm: SharedDigest] = [:]
  /// How many bytes of the representation are included.
  private var count: UInt64 = 0
  /// The state when bytes began to arrive that may be taken back.
  private var saved: (running: [DigestAlgorithm: SharedDigest], count: UInt64)?
  private var isCatchingUp = false
  /// While it is catching up, the body that receives the bytes now. The handler may have been begun again since the
  /// worker began to read, and the body that it had then receives nothing any more.
  private var newestBody: (any KeptBody)?
  private var isGivenUp = false
  /// Identifies the present ``running``, because it may have been replaced while the worker read.
  private var generation = 0
  private var whenCurrent: ((Verdict) -> Void)?

  /// nil if no known digest is given or requested.
  init?(_ fields: HeaderFields) {
    let given = fields[DigestField.representation].flatMap { DigestField(parsing: $0) }?.digests ?? []
    expected = given.compactMap { member in
      DigestAlgorithm(name: member.algorithm).map { (algorithm: $0, value: member.value) }
    }
    wanted =
      DigestField.wanted(parsing: fields[DigestField.wantRepresentation] ?? "")
      .lazy.compactMap { DigestAlgorithm(name: $0) }.first
    if expected.isEmpty && wanted == nil { return nil }
    begin()
  }

  private func begin() {
    generation += 1
    running = [:]
    count = 0
    for algorithm in Set(expected.map(\.algorithm) + (wanted.map { [$0] } ?? [])) {
      running[algorithm] = SharedDigest(algorithm)
    }
  }

  // MARK: Bytes

  /// Adds bytes that were kept at `offset`. If they do not follow directly, they are read again later.
  func update(_ bytes: Span<UInt8>, _ pieces: [Range<Int>], at offset: UInt64) {
    guard offset == count, !isCatchingUp else { return }
    for digest in running.values { digest.update(bytes, pieces) }
    count += UInt64(pieces.reduce(0) { $0 + $1.count })
  }

  /// From here on, bytes may be taken back.
  func save() {
    guard !isCatchingUp else {
      saved = nil
      return
    }
    saved = (running.mapValues { SharedDigest(copyOf: $0) }, count)
  }

  /// Bytes beyond `offset` were taken back.
  func rewind(to offset: UInt64) {
    guard count > offset || isCatchingUp else { return }
    // Replaces the digest that the worker is using instead of changing it under the worker.
    generation += 1
    if let saved, saved.count <= offset { (running, count) = saved } else { begin() }
    saved = nil
  }

  /// `Repr-Digest` of the first `offset` bytes, if it was requested and covers all of them.
  func field(at offset: UInt64) -> String? {
    guard let wanted, count == offset, !isCatchingUp, let digest = running[wanted]?.running.value() else {
      return nil
    }
    return DigestField([(wanted.name, digest.bytes)]).value
  }

  /// The SHA-256 of the first `offset` bytes, if it was requested or announced and covers all of them.
  func sha256(at offset: UInt64) -> [UInt8]? {
    guard count == offset, !isCatchingUp else { return nil }
    return running[.sha256]?.running.value().bytes
  }

  // MARK: Catching up

  enum Verdict: Equatable {
    case right, wrong
    /// Not all bytes can be read.
    case unknown
    /// The bytes cannot be read now, or have changed (`ESTALE`).
    case unreadable(SystemError)
  }

  /// Includes everything, and reports whether it matches the announced digest. On the loop's thread, now or later.
  func catchUp(
    with body: any KeptBody, loop: EventLoop, worker: BackgroundWorker, _ completion: @escaping (Verdict) -> Void
  ) {
    whenCurrent = completion
    catchUpInBackground(with: body, loop: loop, worker: worker)
  }

  /// The verdict is no longer needed.
  func abandon() {
    whenCurrent = nil
    newestBody = nil
    isGivenUp = true
  }

  func catchUpInBackground(with body: any KeptBody, loop: EventLoop, worker: BackgroundWorker) {
    guard !isGivenUp else { return }
    guard !isCatchingUp else {
      newestBody = body
      return
    }
    let end = body.keptCount
    // Bytes were taken back.
    if count > end { begin() }
    if count < end {
      do throws(SystemError) {
        // There are none if a server discards the bytes, or if a part was moved away.
        guard let reading = try body.stretches(of: count..<end).flatMap({ FileReading($0) }) else {
          return notRead(.unknown)
        }
        guard end - count <= Self.smallGap else {
          isCatchingUp = true
          newestBody = body
          return readSlice(reading, generation, loop, worker)
        }
        let digests = Array(running.values)
        count += try reading.next(.max) { bytes in for digest in digests { digest.update(bytes, [0..<bytes.count]) } }
      } catch {
        return notRead(.unreadable(error))
      }
    }
    if let action = whenCurrent {
      whenCurrent = nil
      action(expected.allSatisfy { running[$0.algorithm]?.isEqual($0.value) ?? true } ? .right : .wrong)
    }
  }

  /// A piece may be half included, so start from the beginning next time.
  private func notRead(_ verdict: Verdict) {
    begin()
    let action = whenCurrent
    whenCurrent = nil
    // If nothing was announced, the only consequence is an answer without a digest.
    action?(expected.isEmpty ? .right : verdict)
  }

  /// The worker reads the next slice. It reads one at a time, so that a long file does not block others.
  private func readSlice(
    _ reading: FileReading, _ generation: Int, _ loop: EventLoop, _ worker: BackgroundWorker
  ) {
    let digests = Array(running.values)
    // Used on the loop's thread only. The worker merely carries it back there.
    nonisolated(unsafe) let carried = self
    worker.executeSlice {
      let read = Result { () throws(SystemError) in
        try reading.next(Self.slice) { bytes in for digest in digests { digest.update(bytes, [0..<bytes.count]) } }
      }
      loop.execute { carried.tookSlice(read, reading, generation, loop, worker) }
    }
  }

  /// - Parameter read: how many bytes were added.
  private func tookSlice(
    _ read: Result<UInt64, SystemError>, _ reading: FileReading, _ generation: Int, _ loop: EventLoop,
    _ worker: BackgroundWorker
  ) {
    guard self.generation == generation else { return continueCatchingUp(loop, worker) }
    do throws(SystemError) {
      count += try read.get()
    } catch {
      endCatchingUp()
      return notRead(.unreadable(error))
    }
    guard !isGivenUp else { return endCatchingUp() }
    if reading.isAtEnd { continueCatchingUp(loop, worker) } else { readSlice(reading, generation, loop, worker) }
  }

  private func endCatchingUp() { (isCatchingUp, newestBody) = (false, nil) }

  /// Includes what has arrived since the worker began to read.
  private func continueCatchingUp(_ loop: EventLoop, _ worker: BackgroundWorker) {
    let body = newestBody
    endCatchingUp()
    if let body { catchUpInBackground(with: body, loop: loop, worker: worker) }
  }
}
