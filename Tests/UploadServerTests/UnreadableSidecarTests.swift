// Tests that a hidden sidecar which cannot be read for a moment does not count as missing.

import EventLoops
import Glibc
import HTTPMessages
import NetworkTesting
import Recordings
import SyncGate
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Hidden sidecars that cannot be read for a while")
struct UnreadableSidecarTests {
  private enum Moment: CaseIterable {
    /// The server finds it at its start.
    case found
    /// The digests are about to be computed.
    case begun
    /// The sidecar with the digests is about to replace it.
    case named
  }

  private static let name = StreamName(path: "/h.txt", streamID: "a", mediaType: "text/plain")
  private static let link = "h/2026-11-21T22-00-00Z.txt"

  private static func store(_ directory: TemporaryDirectory, _ durability: Durability) throws -> FileStore {
    try FileStore(
      path: directory.path, durability: durability, closedLifetime: .zero, hasSidecars: true,
      names: RecordingNames(pattern: RecordingNames.standardPattern, includesWhole: true), files: OpenFiles(),
      UploadUsage(.init()))
  }

  /// Waits until the worker has done all that it has been given.
  private static func awaitWorker(_ store: FileStore) throws {
    let isOver = try EventLog<Bool>()
    store.worker.execute { isOver.append(true) }
    _ = try isOver.first("the worker has done all") { _ in true }
  }

  @Test("the recording receives its sidecar later, and its link stays")
  func later() async {
    await #expect(processExitsWith: .success) {
      for moment in Moment.allCases {
        for code in [EIO, ENOMEM, EMFILE] {
          try UnreadableSidecarTests.run(moment, code)
        }
      }
    }
  }

  private static func run(_ moment: Moment, _ code: Int32) throws {
    let directory = TemporaryDirectory()
    try directory.write(name.final, Array("abc".utf8))
    var sidecar = RecordingSidecar(file: name.final)
    (sidecar.stream, sidecar.started) = ("a", "2026-11-21T22:00:00.000Z")
    sidecar.stored = RecordingSidecar.Content(bytes: 3)
    sidecar.received = sidecar.stored
    try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
    let store = try store(directory, .interval)
    let hidden = "/" + name.pendingSidecar
    switch moment {
    case .found:
      open_gate_fail(code, hidden)
      store.completeLeftSidecar(name)
    case .begun:
      open_gate_fail(code, hidden)
      store.completeSidecar(name)
    case .named:
      let count = sync_gate_calls()
      sync_gate_close()
      store.completeSidecar(name)
      try waitUntil("the sidecar is on its way to the disk") { sync_gate_calls() > count }
      open_gate_fail(code, hidden)
      sync_gate_open()
    }
    try waitUntil("\(moment), \(code): it cannot be read") { open_gate_failures() > 0 }
    try awaitWorker(store)
    try require(directory.exists(name.pendingSidecar), "\(moment), \(code): it is gone")
    try require(!directory.exists(name.sidecar), "\(moment), \(code): there is a sidecar already")
    if moment == .named { try require(directory.exists(link), "\(moment), \(code): the link is gone") }
    open_gate_fail(0, "")
    store.finishUnfinished()
    try waitUntil("\(moment), \(code): the sidecar follows") {
      directory.exists(name.sidecar) && !directory.exists(name.pendingSidecar)
    }
    let complete = try RecordingSidecar(parsing: try directory.contents(name.sidecar))
    try require(complete.stored?.sha256 != nil && complete.link == link, "\(moment), \(code): \(complete)")
    try require(directory.exists(link), "\(moment), \(code): no link")
  }

  @Test("a recording is undisputed if no digest of its received bytes is known, and otherwise once it was compared")
  func proof() throws {
    let directory = TemporaryDirectory()
    let (store, name) = (try Self.store(directory, .none), Self.name)
    #expect(store.proof(of: name) == .unknown)
    var sidecar = RecordingSidecar(file: name.final)
    sidecar.stored = RecordingSidecar.Content(bytes: 3)
    sidecar.received = sidecar.stored
    try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
    #expect(store.proof(of: name) == .undisputed)
    sidecar.received?.sha256 = String(repeating: "0", count: 64)
    try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
    #expect(store.proof(of: name) == .pending)
    // A removal in place hides a sidecar with digests.
    sidecar.stored?.sha256 = String(repeating: "0", count: 64)
    try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
    #expect(store.proof(of: name) == .unknown)
    try directory.write(name.sidecar, Array(sidecar.text.utf8))
    #expect(store.proof(of: name) == .undisputed)
    sidecar.isDamaged = true
    try directory.write(name.sidecar, Array(sidecar.text.utf8))
    #expect(store.proof(of: name) == .damaged)
  }

  /// What is in the place of a hidden sidecar.
  enum Illegible: CaseIterable, Sendable {
    case empty, cut, directory
  }

  @Test(
    "a hidden sidecar of a complete recording that cannot be parsed is reported once",
    arguments: Illegible.allCases, [false, true])
  func illegible(_ kind: Illegible, isRunning: Bool) throws {
    let directory = TemporaryDirectory()
    let name = Self.name
    try directory.write(name.final, Array("abc".utf8))
    switch kind {
    case .empty: try directory.write(name.pendingSidecar, [])
    case .cut: try directory.write(name.pendingSidecar, Array("{\n  \"version\": 1,".utf8))
    case .directory: #expect(mkdir("\(directory.path)/\(name.pendingSidecar)", 0o700) == 0)
    }
    let store = try Self.store(directory, .none)
    let events = try EventLog<ServerEvent>()
    store.reportUnfinished { events.append($0) }
    func awaitSlices() throws {
      let isOver = try EventLog<Bool>()
      store.worker.executeSlice { isOver.append(true) }
      _ = try isOver.first("the worker has done all slices") { _ in true }
    }
    if isRunning { store.completeSidecar(name) } else { store.completeLeftSidecar(name) }
    try awaitSlices()
    for _ in 0..<20 {
      store.finishUnfinished()
      try awaitSlices()
    }
    #expect(events.all.map(\.kind) == [.warning])
    #expect(events.all.first?.reason?.contains("parse \(name.pendingSidecar)") == true, "\(events.all)")
  }

  @Test("a recording is not continued while it is unknown whether its header was changed")
  func head() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let head = StreamedHead.all[0]
      let samples = [UInt8](repeating: 7, count: 400)
      let finished = head.finished(sampleByteCount: samples.count) + samples
      let name = StreamName(path: "/k.wav", streamID: "a", mediaType: "audio/wav")
      // The server was killed before the recording got its name.
      try directory.write(name.partial, finished)
      var sidecar = RecordingSidecar(file: name.final)
      sidecar.stored = RecordingSidecar.Content(bytes: UInt64(finished.count))
      (sidecar.received, sidecar.receivedHead) = (sidecar.stored, head.bytes)
      try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
      let store = try UnreadableSidecarTests.store(directory, .none)
      for code in [EIO, ENOMEM, EMFILE] {
        open_gate_fail(code, "/" + name.pendingSidecar)
        do {
          _ = try store.open(name, for: nil, at: 0, creating: true)
          throw TestFailure("it is continued")
        } catch let error as SystemError {
          try require(error.code == code, "\(error)")
        }
        try require(try directory.contents(name.partial) == finished, "\(code): the file has changed")
      }
      open_gate_fail(0, "")
      let stream = try store.open(name, for: nil, at: 0, creating: true)
      try require(stream?.isNew == false, "it is continued")
      try require(try directory.contents(name.partial) == head.bytes + samples, "the received header is not restored")
    }
  }

  @Test("what was moved away of a recording that is still there is moved back as soon as its sidecar can be read")
  func halfRemoved() async {
    await #expect(processExitsWith: .success) {
      for code in [EIO, ENOMEM, EMFILE] {
        let directory = TemporaryDirectory()
        _ = try VerificationTests.Recording.withHole.store(in: directory)
        // The server was killed before it moved the recording itself.
        try require(mkdir("\(directory.path)/.removing", 0o700) == 0, "mkdir")
        for name in ["k-a.sidecar", "k-a.gaps"] {
          let isMoved = rename("\(directory.path)/\(name)", "\(directory.path)/.removing/\(name)") == 0
          try require(isMoved, "rename \(name)")
        }
        open_gate_fail(code, "/.removing/k-a.sidecar")
        let first = try TestServer(in: directory)
        // Once for each of both files when they are to be moved back, and when they are to be removed.
        try waitUntil("\(code): it cannot be read") { open_gate_failures() >= 4 }
        first.stop()
        open_gate_fail(0, "")
        for name in [".removing/k-a.sidecar", ".removing/k-a.gaps", "k-a.txt"] {
          try require(directory.exists(name), "\(code): \(name) is gone")
        }
        let next = try TestServer(in: directory)
        try waitUntil("\(code): all is back") {
          ["k-a.sidecar", "k-a.gaps", "k-a.txt"].allSatisfy { directory.exists($0) }
        }
        next.stop()
      }
    }
  }

  @Test("what a sender has stated about its stream stays while it cannot be read")
  func description() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let name = UnreadableSidecarTests.name
      let store = try UnreadableSidecarTests.store(directory, .none)
      guard let stream = try store.open(name, for: nil, at: 0, creating: true) else { throw TestFailure("no stream") }
      var (first, second) = (StreamDescription(), StreamDescription())
      (first.device, second.rate) = ("hw:1", 48_000)
      try store.describe(stream, first)
      let stated = try directory.contents(name.pendingSidecar)
      let steps = store.sidecarSteps(
        FinishingRecording(name: name, start: 0, length: 0, size: 0, ending: .live), stream.stored)
      let next = name.recording(2)
      let addition = second
      let attempts: [(String, () throws -> Void)] = [
        ("describe", { try store.describe(stream, addition) }),
        ("finish", { _ = try steps[0]() }),
        ("split", { try store.inheritSidecar(from: name, to: next) }),
      ]
      for code in [EIO, ENOMEM, EMFILE] {
        for (attempt, run) in attempts {
          open_gate_fail(code, "/" + name.pendingSidecar)
          do {
            try run()
            throw TestFailure("\(code), \(attempt): it is replaced")
          } catch let error as SystemError {
            try require(error.code == code, "\(code), \(attempt): \(error)")
          }
          open_gate_fail(0, "")
          try require(try directory.contents(name.pendingSidecar) == stated, "\(code), \(attempt): it has changed")
        }
      }
      try store.describe(stream, addition)
      let sidecar = try RecordingSidecar(parsing: try directory.contents(name.pendingSidecar))
      try require(sidecar.device == "hw:1" && sidecar.rate == 48_000, "\(sidecar)")
    }
  }
}
