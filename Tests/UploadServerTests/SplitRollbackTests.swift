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
  @Test(
    "a recording that was split without its final name grows again, and its successor is gone", arguments: 1...3,
    [false, true])
  func undone(_ part: Int, isLogShortened: Bool) throws {
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
    let store = try FileStore(in: directory, durability: .interval, hasSidecars: true, split: split)
    let (name, start) = (StreamName(base: "k-a"), try store.parts.lines(of: "k-a").first { $0.number == part }?.start)
    let extent = GrowthExtent(part: part, length: try #require(start) + 200)
    if isLogShortened {
      // The log of a long stream keeps only the last line about each recording.
      let lines = try store.parts.lines(of: "k-a").current.values.sorted { $0.number < $1.number }
      try store.parts.rewrite(lines, of: "k-a", isSynced: false)
    }
    try store.undoSplit(name, to: extent)
    let last = try store.parts.lines(of: "k-a").last
    #expect(last.map { $0.number == part && $0.end == nil && !$0.isSplit && $0.head.isEmpty } ?? (part == 1))
    try store.rollBack(name, to: extent)
    #expect(try store.growth(of: name) == extent)
    let missing = try store.rollBack(name, to: GrowthExtent(part: part, length: extent.length + 5))
    #expect(missing == 5)
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
    // A caller that knew nothing of the recording keeps no byte of it. The log lists all but the first one.
    try store.rollBack(name, to: nil)
    let left = part == 1 ? nil : GrowthExtent(part: part, length: try #require(start))
    #expect(try store.growth(of: name) == left)
  }
}
