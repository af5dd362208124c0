// What a collector restores from the checkpoint of an earlier one.

import DiskFiles
import EventLoops
import JetStream
import NetworkTesting
import StreamServing
import StreamStore
import Testing

@testable import LogCollecting

@Suite("Restoring a directory to a checkpoint")
struct CollectionStartTests {
  // Without an upload, it may be the recording of a server, whose bytes no collector has synced.
  @Test(
    "what the disk has refused is forgotten if the checkpoint has synced bytes of an upload in the recording",
    arguments: [true, false])
  func refusals(hasUpload: Bool) throws {
    let directory = try TemporaryDirectory()
    let store = try FileStore(
      path: directory.path, durability: .none, closedLifetime: .zero, isCollected: true, files: OpenFiles(),
      UploadUsage(.init()))
    let origin = UploadOrigin(
      path: "/x", mediaType: "text/plain", streamID: "a", streamStart: 0, owner: nil, isLive: true, description: nil)
    var checkpoint = CollectorCheckpoint(stream: "sluice", created: "now", partition: "1/1")
    checkpoint.files = [.init(base: "x-a", part: 1, length: 5)]
    if hasUpload { checkpoint.uploads = [.init(token: "t", origin: origin, segmentStart: 0, offset: 5)] }
    try CheckpointFile(in: store.directory).write(checkpoint)
    try directory.write("x-a.part", "bytes, and refused ones")
    try directory.write("x-a.gaps", "{\"offset\":0,\"length\":0,\"cause\":\"not-synced\"}\n")
    let configuration = LogCollector.Configuration(
      brokers: BrokerOptions(servers: []), stream: "sluice", directory: directory.path, onEvent: { _ in })
    let start = try CollectionStart(store, configuration, created: "now")
    #expect(start.unfinished.map(\.name.base) == ["x-a"])
    #expect(start.losses.isEmpty)
    #expect(try directory.contents("x-a.part") == Array("bytes".utf8))
    #expect(directory.names.contains("x-a.gaps") == !hasUpload)
  }
}
