// One upload of the log, whose recording another program touches.

import DiskFiles
import EventLoops
import Glibc
import NetworkTesting
import StreamServing
import StreamStore
import Testing

@testable import LogCollecting

@Suite("One upload of a collector")
struct CollectedUploadTests {
  @Test("an upload whose recording another program removes before its end waits, because the disk has lost nothing")
  func removedBeforeEnd() throws {
    let (directory, files, loop) = (try TemporaryDirectory(), OpenFiles(), try EventLoop())
    let usage = UploadUsage(.init())
    let store = try FileStore(
      path: directory.path, durability: .interval, closedLifetime: .zero, isCollected: true, files: files, usage)
    let context = ServingContext(
      loop: loop, assignment: .only, figures: ServerLoopFigures(), finishAfter: .seconds(3600),
      isValid: { _ in true }, emit: { _ in })
    let registry = StreamRegistry(
      context, store: store,
      limits: StreamLimits(options: .init(), usage: usage, accounts: nil, worker: store.worker, loop: loop),
      maximumHole: 0, maximumGapLines: .max)
    registry.restored()
    let origin = UploadOrigin(
      path: "/x", mediaType: nil, streamID: "a", streamStart: 0, owner: nil, isLive: true, description: nil)
    let upload = CollectedUpload("t", origin, registry: registry, loop: loop, emit: { _ in })
    var outcomes: [CollectedUpload.Outcome] = []
    upload.open { outcomes.append($0) }
    let bytes = Array("hello".utf8)
    outcomes.append(upload.keep(bytes[...]))
    try #require(outcomes == [.done, .done])
    // So its last sync has to open it again.
    while files.closeIdle() > 0 {}
    try #require(unlink("\(directory.path)/x-a.part") == 0)
    upload.complete(sha256: nil) { outcome in
      outcomes.append(outcome)
      loop.stop()
    }
    loop.run()
    let isLater = if case .later? = outcomes.last { true } else { false }
    #expect(outcomes.count == 3 && isLater, "\(outcomes)")
  }
}
