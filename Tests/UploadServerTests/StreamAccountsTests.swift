// Tests the accounts of unfinished recordings whose files others change.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore

@Suite("The accounts of unfinished recordings")
struct StreamAccountsTests {
  private static let quota: UInt64 = 10_000
  private let usage: UploadUsage
  private let directory = TemporaryDirectory()
  private let accounts: StreamAccounts
  private let owner = UploadOwner(credential: nil, address: "a")

  init() {
    var limits = UploadLimitsConfiguration()
    limits.quota = Self.quota
    usage = UploadUsage(limits)
    accounts = StreamAccounts(usage, in: open(directory.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC))
  }

  private static func name(_ number: Int) -> StreamName {
    StreamName(path: "/t.txt", streamID: "\(number)", mediaType: "text/plain")
  }

  @Test(
    "a recording that is opened again counts with the length of its file, which others have shortened or extended",
    arguments: Seed.several(4))
  func openedAgain(_ seed: Seed) {
    var random = seed.generator
    var lengths: [Int: UInt64] = [:]
    for step in 0..<60 {
      let number = Int.random(in: 0..<4, using: &random)
      let length = random.chance(20) ? 0 : UInt64.random(in: 1...2000, using: &random)
      let account = accounts.open(Self.name(number), length: length, owner: random.chance(80) ? owner : nil)
      lengths[number] = length
      #expect(account.bytes == length)
      accounts.close(Self.name(number))
      #expect(usage.room(of: nil) == Self.quota - lengths.values.reduce(0, +), "step \(step)")
    }
  }

  @Test(
    "the space of all files that others have removed is free again, however many there are", arguments: [1, 501, 1200])
  func removed(count: Int) throws {
    for number in 0...count {
      _ = accounts.open(Self.name(number), length: 2, owner: owner)
      accounts.close(Self.name(number))
    }
    // One is still there.
    try directory.write(Self.name(0).partial, [1, 2])
    #expect(usage.room(of: nil) == Self.quota - 2 * UInt64(count + 1))
    accounts.recount(on: BackgroundWorker())
    try waitUntil("the room is free") { usage.room(of: nil) == Self.quota - 2 }
  }

  @Test("of a stream that is divided into recordings, only the one that grows counts")
  func divided() throws {
    let head = StreamedHead.all[0]
    let piece = 4 * head.frameLength
    var limits = UploadLimitsConfiguration()
    limits.quota = Self.quota
    let usage = UploadUsage(limits)
    var division = RecordingSplit(size: UInt64(head.bytes.count + 4 * piece))
    division.leastLength = 0
    let store = try FileStore(
      path: directory.path, durability: .none, closedLifetime: .zero, hasSidecars: true, split: division,
      files: OpenFiles(), usage)
    let name = StreamName(path: "/k.wav", streamID: "a", mediaType: "audio/wav")
    let stream = try #require(try store.open(name, for: nil, at: 0, creating: true))
    let allowance = StreamAllowance(
      StreamLimits(
        options: limits, usage: usage, accounts: store.accounts, worker: store.worker, loop: try EventLoop()))
    try allowance.enter(owner, needsRoom: true)
    allowance.open(stream, owner: owner)
    var (offset, count) = (0, 0)
    for number in 0..<20 {
      let bytes = number == 0 ? head.bytes : [UInt8](repeating: UInt8(number), count: piece)
      let granted = allowance.reserve(UInt64(bytes.count))
      #expect(granted == UInt64(bytes.count))
      let stored = stream.write(bytes.span, [0..<bytes.count], skipping: 0, at: UInt64(offset), maySplit: true)
      #expect(stored.count == bytes.count && stored.error == nil)
      offset += bytes.count
      for part in stored.splits { allowance.moved(from: part.name, to: stream) }
      allowance.settle(stream)
      count += stored.splits.count
      #expect(usage.room(of: nil) == Self.quota - stream.size, "piece \(number)")
    }
    #expect(count == 4 && stream.name.partial == "k-a~5.part")
    allowance.leave()
    #expect(usage.room(of: nil) == Self.quota - stream.size)
  }
}
