// Tests splits after a power failure that kept the log but lost the end of the recording that was split.

import Glibc
import NetworkTesting
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Splits that are taken back")
struct SplitRollbackTests {
  @Test("a recording that was split without its final name grows again, and its successor is gone", arguments: 1...3)
  func undone(_ part: Int) throws {
    let directory = TemporaryDirectory()
    var split = RecordingSplit(duration: nil, size: 1000)
    split.leastLength = 0
    let test = try TestServer(in: directory) { $0.split = split }
    let head = StreamedHead.all[0].bytes
    let stream = head + (0..<4000).map { UInt8(truncatingIfNeeded: $0 &* 7 >> 2) }
    let location = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
    try test.append(location, at: 0, completes: false, stream)
    func base(_ part: Int) -> String { part == 1 ? "k-a" : "k-a~\(part)" }
    for part in 1...3 {
      try waitUntil("part \(part) is complete") {
        directory.exists("\(base(part)).wav") && directory.exists("\(base(part)).sidecar")
      }
    }
    test.stop()
    for (from, to) in [
      ("\(base(part)).wav", "\(base(part)).part"), ("\(base(part)).sidecar", ".\(base(part)).sidecar"),
    ] {
      #expect(rename("\(directory.path)/\(from)", "\(directory.path)/\(to)") == 0)
    }
    let store = try FileStore(
      path: directory.path, durability: .interval, closedLifetime: .zero, hasSidecars: true, split: split,
      files: OpenFiles(), UploadUsage(.init()))
    let (name, start) = (StreamName(base: "k-a"), try store.parts.lines(of: "k-a").first { $0.number == part }?.start)
    let extent = GrowthExtent(part: part, length: try #require(start) + 200)
    try store.undoSplit(name, to: extent)
    try store.rollBack(name, to: extent)
    #expect(try store.growth(of: name) == extent)
    let files = directory.names.filter { $0.hasPrefix("k-a") }
    #expect(files == (1..<part).map { "\(base($0)).wav" } + ["\(base(part)).part"])
    let bytes = try directory.contents("\(base(part)).part")
    #expect(bytes.dropFirst(head.count).elementsEqual(stream[..<Int(extent.length)].suffix(bytes.count - head.count)))
    // A second time: the checkpoint is unchanged.
    try store.undoSplit(name, to: extent)
    #expect(try store.growth(of: name) == extent)
    var found: [String] = []
    try store.findUnfinished { name, _ in found.append(name.partial) }
    #expect(found == ["\(base(part)).part"])
  }
}
