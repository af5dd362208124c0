// Tests the digests of an upload whose bytes are read again on the worker, or were taken back.

import Digests
import EventLoops
import HTTPMessages
import HTTPServer
import NetworkTesting
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Digests of uploads")
struct UploadDigestsTests {
  /// A store for spooled bytes, and a loop that the test runs itself.
  private struct Bench {
    let directory = TemporaryDirectory()
    let files = OpenFiles()
    let usage = UploadUsage(.init())
    let loop: EventLoop
    let store: FileStore
    let records: UploadRecordStore

    init() throws {
      loop = try EventLoop()
      store = try FileStore(path: directory.path, durability: .none, closedLifetime: .zero, files: files, usage)
      records = try UploadRecordStore(
        in: RecordsDirectory(in: store.directory), disk: store.disk, worker: store.worker, files: files,
        durability: .none, loop: loop, assignment: .only)
    }

    func body(_ bytes: [UInt8]) throws -> SpooledBody {
      let (file, count) = try records.openBody("0000", creating: true)
      let body = SpooledBody(
        file, keptCount: count, account: StreamAccount(usage), share: usage.share(of: nil),
        handler: FixedResponseHandler(Response(200)), loop: loop, records: records, unreadable: { _ in })
      #expect(body.append(bytes.span, pieces: [0..<bytes.count]) == nil)
      return body
    }

    func digests(announcing bytes: [UInt8]) throws -> UploadDigests {
      let digest = Digest(.sha256, of: bytes.span.bytes)
      return try #require(UploadDigests(["repr-digest": "sha-256=:\(digest.base64):"]))
    }

    /// The verdict about all bytes of a body; nil if there is none after a minute.
    ///
    /// - Parameter ready: called when the verdict was requested.
    func verdict(
      of digests: UploadDigests, about body: SpooledBody, _ ready: () -> Void = {}
    ) -> UploadDigests.Verdict? {
      let loop = loop
      var verdict: UploadDigests.Verdict?
      digests.catchUp(with: body, loop: loop, worker: store.worker) {
        verdict = $0
        loop.stop()
      }
      ready()
      loop.runAtMostAMinute()
      return verdict
    }
  }

  @Test("if fewer bytes are kept than the digest includes, it is computed from those that are left")
  func shorter() throws {
    let bench = try Bench()
    let (all, left) = (Array("abcdef".utf8), Array("abc".utf8))
    let digests = try bench.digests(announcing: left)
    digests.update(all.span, [0..<all.count], at: 0)
    let body = try bench.body(left)
    let verdict = bench.verdict(of: digests, about: body)
    #expect(verdict == .right)
  }

  @Test(
    "bytes that are taken back while the worker reads leave nothing in the digest, whether it reads one slice or more",
    arguments: [3 << 20, 9 << 20])
  func takenBack(_ count: Int) throws {
    let bench = try Bench()
    let bytes = [UInt8](repeating: 7, count: count)
    let digests = try bench.digests(announcing: bytes)
    let body = try bench.body(bytes)
    let gate = EndSignal()
    bench.store.worker.execute { gate.wait() }
    // More than the server reads without the worker.
    digests.catchUpInBackground(with: body, loop: bench.loop, worker: bench.store.worker)
    digests.rewind(to: UInt64(count))
    let verdict = bench.verdict(of: digests, about: body) { gate.signal() }
    #expect(verdict == .right)
  }
}
