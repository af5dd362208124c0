// Digests of what is uploaded: of all of it, across requests and restarts, and of one request's content (RFC 9530).

internal import Digests
internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import StreamServing

/// The digests of a representation. It takes the bytes as they come; what came before it, or while it was behind, it
/// reads again from the disk, in the background. Only on the loop's thread.
final class UploadDigests {
  /// How far behind it may be to catch up without a thread, in bytes.
  private static let smallGap: UInt64 = 1 << 20
  /// How much the worker reads before others have their turn, in bytes: some 20 ms of hashing.
  private static let slice: UInt64 = 8 << 20

  /// What `Repr-Digest` of the creation says, as far as we can judge it. Unknown algorithms are ignored (RFC 9530,
  /// section 2).
  private let expected: [(algorithm: DigestAlgorithm, value: [UInt8])]
  /// What answers tell: the first that `Want-Repr-Digest` asks for and we have.
  private let wanted: DigestAlgorithm?
  private var running: [DigestAlgorithm: SharedDigest] = [:]
  /// How many bytes of the representation are in.
  private var count: UInt64 = 0
  /// As it was when bytes began to come that may be taken back.
  private var saved: (running: [DigestAlgorithm: SharedDigest], count: UInt64)?
  private var isCatchingUp = false
  private var isGivenUp = false
  /// Which ``running`` it is: the worker may come back to others than it went out with.
  private var generation = 0
  private var whenCurrent: ((Verdict) -> Void)?

  /// nil if no digest is given or wanted that we know.
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

  /// An algorithm that libcrypto does not have here is one that we do not know.
  private func begin() {
    generation += 1
    running = [:]
    count = 0
    for algorithm in Set(expected.map(\.algorithm) + (wanted.map { [$0] } ?? [])) {
      if let digest = try? SharedDigest(algorithm) { running[algorithm] = digest }
    }
  }

  // MARK: Bytes

  /// Takes bytes that were kept at `offset`; those that do not come next are read again later.
  func update(_ bytes: Span<UInt8>, _ pieces: [Range<Int>], at offset: UInt64) {
    guard offset == count, !isCatchingUp else { return }
    for digest in running.values { digest.update(bytes, pieces) }
    count += UInt64(pieces.reduce(0) { $0 + $1.count })
  }

  /// From here on bytes may be taken back.
  func save() {
    guard !isCatchingUp else {
      saved = nil
      return
    }
    var copies: [DigestAlgorithm: SharedDigest] = [:]
    for (algorithm, digest) in running {
      guard let copy = try? SharedDigest(copyOf: digest) else {
        saved = nil
        return
      }
      copies[algorithm] = copy
    }
    saved = (copies, count)
  }

  /// Bytes beyond `offset` were taken back.
  func rewind(to offset: UInt64) {
    guard count > offset || isCatchingUp else { return }
    // What the worker is just reading is replaced, not changed under it.
    generation += 1
    if let saved, saved.count <= offset { (running, count) = saved } else { begin() }
    saved = nil
  }

  /// `Repr-Digest` of the first `offset` bytes, if it was asked for and all of them are in.
  func field(at offset: UInt64) -> String? {
    guard let wanted, count == offset, !isCatchingUp, let digest = try? running[wanted]?.running.value() else {
      return nil
    }
    return DigestField([(wanted.name, digest.bytes)]).value
  }

  // MARK: Catching up

  enum Verdict: Equatable {
    case right, wrong
    /// Not all of it is there to be read.
    case unknown
    /// It cannot be read now, or is not what it was (`ESTALE`).
    case unreadable(SystemError)
  }

  /// Sees to it that everything is in, and says whether it is what was announced. On the loop's thread, now or later.
  func catchUp(
    with body: any UploadBody, loop: EventLoop, worker: BackgroundWorker, _ completion: @escaping (Verdict) -> Void
  ) {
    whenCurrent = completion
    catchUpInBackground(with: body, loop: loop, worker: worker)
  }

  /// Nobody waits for the verdict any more, and nobody will.
  func abandon() {
    whenCurrent = nil
    isGivenUp = true
  }

  func catchUpInBackground(with body: any UploadBody, loop: EventLoop, worker: BackgroundWorker) {
    guard !isCatchingUp, !isGivenUp else { return }
    let end = body.keptCount
    // Bytes were taken back.
    if count > end { begin() }
    if count < end {
      do throws(SystemError) {
        // There are none if a server discards what it is sent, or if somebody has moved a part away.
        guard let reading = try body.stretches(of: count..<end).flatMap({ FileReading($0) }) else {
          return notRead(.unknown)
        }
        guard end - count <= Self.smallGap else {
          isCatchingUp = true
          return readSlice(reading, body, generation, loop, worker)
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

  /// Half of a piece may be in: from the beginning, the next time.
  private func notRead(_ verdict: Verdict) {
    begin()
    let action = whenCurrent
    whenCurrent = nil
    // Where nothing was announced, only an answer lacks its digest.
    action?(expected.isEmpty ? .right : verdict)
  }

  /// Has the worker read the next slice. It reads one at a time, so that a long file keeps nobody waiting.
  private func readSlice(
    _ reading: FileReading, _ body: any UploadBody, _ generation: Int, _ loop: EventLoop, _ worker: BackgroundWorker
  ) {
    let digests = Array(running.values)
    // Both are touched on the loop's thread only; the worker merely carries them back there.
    nonisolated(unsafe) let carried = (digests: self, body: body)
    worker.executeSlice {
      let read = Result { () throws(SystemError) in
        try reading.next(Self.slice) { bytes in for digest in digests { digest.update(bytes, [0..<bytes.count]) } }
      }
      loop.execute { carried.digests.tookSlice(read, reading, carried.body, generation, loop, worker) }
    }
  }

  /// - Parameter read: how many bytes are in now that were not before.
  private func tookSlice(
    _ read: Result<UInt64, SystemError>, _ reading: FileReading, _ body: any UploadBody, _ generation: Int,
    _ loop: EventLoop, _ worker: BackgroundWorker
  ) {
    guard self.generation == generation else {
      isCatchingUp = false
      return catchUpInBackground(with: body, loop: loop, worker: worker)
    }
    do throws(SystemError) {
      count += try read.get()
    } catch {
      isCatchingUp = false
      return notRead(.unreadable(error))
    }
    guard !isGivenUp else {
      isCatchingUp = false
      return
    }
    if reading.isAtEnd {
      isCatchingUp = false
      catchUpInBackground(with: body, loop: loop, worker: worker)
    } else {
      readSlice(reading, body, generation, loop, worker)
    }
  }
}
