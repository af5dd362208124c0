// Tests the small files beside the recordings: one loop writes them while another loop removes its own.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Recordings
import Synchronization
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Records of streams on several threads")
struct RecordThreadsTests {
  private let directory = TemporaryDirectory()
  private let store: FileStore

  init() throws {
    store = try FileStore(in: directory)
  }

  /// The names of streams that belong to one of two loops.
  private static func names(_ assignment: LoopAssignment) -> [StreamName] {
    (0..<1000).map { StreamName(path: "/t", streamID: "\($0)", mediaType: "text/plain") }.filter(assignment.owns)
  }

  /// An error that was thrown on one of the threads.
  private static func failure(_ body: () throws -> Void) -> (any Error)? {
    do {
      try body()
      return nil
    } catch {
      return error
    }
  }

  /// The digest of a token.
  private static let credential = [UInt8](repeating: 1, count: 32)

  @Test("streams begin and are forgotten on one loop while another removes records of streams without files")
  func begunWhileOthersAreForgotten() throws {
    let (own, other) = (LoopAssignment(index: 0, count: 2), LoopAssignment(index: 1, count: 2))
    let credential = [UInt8](repeating: 7, count: 32)
    let store = store
    let isDone = Atomic(false)
    try concurrently(
      {
        let failure = Self.failure {
          for name in Self.names(own) {
            let stream = try #require(try store.open(name, for: credential, at: 0, creating: true))
            let owner = try store.owners.owner(of: name)
            #expect(stream.isNew && owner == credential)
          }
        }
        #expect(failure == nil)
        isDone.store(true, ordering: .releasing)
      },
      {
        while !isDone.load(ordering: .acquiring) {
          let failure = Self.failure {
            try store.findRemoved { base in
              if other.owns(StreamName(base: base)) { store.forgetClosed(StreamName(base: base)) }
            }
          }
          #expect(failure == nil)
        }
      })
  }

  @Test("the last log of one loop's streams is removed while another loop writes one")
  func logsOfTwoLoops() throws {
    let store = store
    let write: @Sendable (Int) -> Void = { loop in
      let failure = Self.failure {
        for name in Self.names(LoopAssignment(index: loop, count: 2)) {
          try store.parts.append(RecordingPart(file: name.final), to: name.base)
          #expect(try store.parts.lines(of: name.base).map(\.file) == [name.final])
          try store.parts.forget(name.base)
        }
      }
      #expect(failure == nil)
    }
    try concurrently({ write(0) }, { write(1) })
    #expect(try store.parts.names() == nil)
  }

  @Test("bytes are compared with a split-off recording while it receives its final header and name")
  func comparedWhileFinished() throws {
    let recordings = TemporaryDirectory()
    let store = try FileStore(
      path: recordings.path, durability: .none, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
      UploadUsage(.init()))
    let loop = try EventLoop()
    let bytes = StreamedHead.all[0].bytes + [UInt8](repeating: 7, count: 400)
    for number in 0..<200 {
      let name = StreamName(path: "/k.wav", streamID: "\(number)", mediaType: "audio/wav")
      let stream = try #require(try store.open(name, for: nil, at: 0, creating: true))
      #expect(stream.write(bytes.span, [0..<bytes.count], skipping: 0, at: 0, maySplit: false).error == nil)
      // Only one of the threads uses this.
      nonisolated(unsafe) let split = try store.split(stream, try #require(WAVHead(bytes)))
      let next = stream.name
      let isDone = Atomic(false)
      try concurrently(
        {
          split.finish(loop) { _ in }
          // Wait until the sidecar has its final name too.
          while !store.isThere(name.sidecar) {}
          isDone.store(true, ordering: .releasing)
        },
        {
          while !isDone.load(ordering: .acquiring) {
            let failure = Self.failure {
              let isSame = try store.matchesEarlier(next, bytes.span, [0..<bytes.count], count: bytes.count, at: 0)
              #expect(isSame)
            }
            #expect(failure == nil)
          }
        })
    }
  }

  @Test("an incomplete owner's record after a crash is removed with its stream")
  func leftovers() throws {
    let name = StreamName(path: "/t", streamID: "1", mediaType: nil)
    try store.owners.record(Self.credential, of: name, isBeginner: true)
    try Command.run("touch", ["\(directory.path)/.owners/t-1~", "\(directory.path)/.owners/t-2~"])
    var gone: Set<String> = []
    try store.findRemoved { gone.insert($0) }
    #expect(gone == ["t-1", "t-2"])
    for base in gone { store.forgetClosed(StreamName(base: base)) }
    #expect(try store.owners.files()?.next(10) == [])
  }

  @Test("a growing recording keeps its stream's owner and log, even if it is the only one left")
  func growing() throws {
    let (first, next) = (
      StreamName(path: "/t", streamID: "1", mediaType: nil), StreamName(path: "/t", streamID: "2", mediaType: nil)
    )
    for name in [first, next] { try store.owners.record(Self.credential, of: name, isBeginner: true) }
    var (closed, growing) = (RecordingPart(file: "t-2.bin"), RecordingPart(file: "t-2~2.bin"))
    (closed.number, closed.end, growing.number) = (1, 3, 2)
    try store.parts.append(closed, growing, to: next.base)
    try Command.run("touch", ["\(directory.path)/t-1.part", "\(directory.path)/t-2~2.part"])
    // Make the log older than necessary.
    var times = [timespec(tv_sec: 1, tv_nsec: 0), timespec(tv_sec: 1, tv_nsec: 0)]
    #expect(utimensat(AT_FDCWD, "\(directory.path)/\(StreamParts.path(next.base))", &times, 0) == 0)
    var gone: Set<String> = []
    try store.findRemoved { gone.insert($0) }
    #expect(gone == [])
    for name in [first, next] {
      store.forgetClosed(StreamName(base: name.base))
      #expect(try store.owners.owner(of: name) == Self.credential)
    }
    #expect(try store.parts.lines(of: next.base).count == 2)
  }

  @Test("of several recordings of one stream that the disk did not let finish, each receives its sidecar later")
  func sidecarsOfOneStream() throws {
    for part in [1, 2, 11] {
      var name = StreamName(path: "/t", streamID: "1", mediaType: nil)
      name.part = part
      try directory.write(name.final, Array("abc".utf8))
      var sidecar = RecordingSidecar(file: name.final)
      sidecar.stored = .init(bytes: 3)
      try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
      store.finishLater(name)
    }
    store.finishUnfinished()
    try waitUntil("each has its sidecar") {
      ["t-1", "t-1~2", "t-1~11"].allSatisfy { directory.exists("\($0).sidecar") }
    }
  }
}
