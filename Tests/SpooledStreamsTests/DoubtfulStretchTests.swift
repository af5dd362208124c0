// Stretches whose checkpoints are damaged, so that nothing shows whether bytes are lost.

import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpooledStreams
import StreamBuffers
import Testing

@Suite("A stretch that may lack bytes")
struct DoubtfulStretchTests {
  enum Damage: CaseIterable, Sendable { case newest, all, header }

  private static let total = 20_000
  /// How many of them are in complete blocks. The others are only in checkpoints.
  private static let inBlocks: UInt64 = 4 * 4064
  private let directory: SpoolDirectory

  init() throws { directory = try SpoolDirectory() }

  /// Captures some bytes. Returns the path of the stretch's file.
  ///
  /// - Parameter isKilled: whether the process leaves its memory.
  private func capture(isKilled: Bool = false) throws -> String {
    let spool = try directory.open()
    let buffer = try spool.begin(description: "d", capacity: 64 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    ends.producer.capture(Self.total)
    if isKilled {
      try SpoolDirectory.wait(for: "the bytes on the disk") {
        buffer.stretch.notSynchronized(upTo: UInt64(Self.total)) == 0
      }
    } else {
      ends.producer.finish()
      #expect(try spool.finish(buffer.stretch, isDelivered: false) == 0)
    }
    return try #require(try directory.stretches().first)
  }

  /// Damages checkpoints, or leaves nothing but the first header.
  private func damage(_ path: String, _ damage: Damage) throws {
    let places = [16_384, 32_768, 49_152]
    let file = open(path, O_RDWR | O_CLOEXEC)
    try #require(file >= 0)
    defer { close(file) }
    func number(_ place: Int) -> UInt64 {
      var number: UInt64 = 0
      return pread(file, &number, 8, place + 16) == 8 ? UInt64(littleEndian: number) : 0
    }
    switch damage {
    case .newest:
      // The end of the source and the end of the stretch have written one each.
      for newest in places.sorted(by: { number($0) > number($1) }).prefix(2) {
        // A byte of the checksum.
        var byte: UInt8 = 0
        let readCount = pread(file, &byte, 1, newest + 8)
        let writtenCount = pwrite(file, [byte ^ 1], 1, newest + 8)
        try #require(readCount == 1 && writtenCount == 1)
      }
    case .all:
      let zeros = [UInt8](repeating: 0, count: 3 * 16_384)
      let writtenCount = pwrite(file, zeros, zeros.count, places[0])
      try #require(writtenCount == zeros.count)
    case .header: try #require(ftruncate(file, 4096) == 0)
    }
  }

  /// Reads a stretch to its end, and ends it as delivered.
  private func deliver(_ backlog: SpooledBacklog, _ spool: StreamSpool) throws {
    var consumer = try backlog.consumer()
    var cursor = backlog.kept.lowerBound
    while cursor < backlog.kept.upperBound { _ = try SpooledStretchTests.read(&consumer, &cursor, 8192, Seed(1)) }
    backlog.stretch.note("how", isUrgent: true)
    #expect(try spool.finish(backlog.stretch, isDelivered: true) == 0)
  }

  @Test("its known bytes are sent once, and its file stays", arguments: Damage.allCases)
  func sentOnce(kind: Damage) throws {
    let path = try capture()
    try damage(path, kind)
    do {
      let spool = try directory.open()
      let backlog = try spool.opened(spool.backlog.first)
      #expect((backlog == nil) == (kind == .header))
      if let backlog {
        #expect(backlog.kept.lowerBound == 0 && backlog.kept.upperBound >= Self.inBlocks, "\(backlog.kept)")
        try deliver(backlog, spool)
      }
    }
    #expect(directory.events.contains { $0.reportsDoubt }, "\(directory.events)")
    for round in 0..<2 {
      let before = directory.events.count
      let spool = try directory.open()
      #expect(try spool.opened(spool.backlog.first) == nil, "\(round)")
      #expect(directory.events.dropFirst(before).contains { $0.reportsDoubt }, "\(round): \(directory.events)")
      #expect(try directory.stretches() == [path], "\(round)")
      let file = try SpoolFile.open(path, access: .readOnly)
      #expect(file.mayLackBytes && file.oldest == file.head && file.checkpoint.state.isEmpty, "\(round)")
    }
  }

  @Test("the memory of a killed process settles the doubt", arguments: [Damage.newest, .all])
  func settled(kind: Damage) throws {
    let path = try capture(isKilled: true)
    try damage(path, kind)
    let spool = try directory.open()
    let backlog = try #require(try spool.opened(spool.backlog.first))
    #expect(backlog.kept.upperBound == UInt64(Self.total))
    try deliver(backlog, spool)
    #expect(try directory.stretches() == [])
    #expect(!directory.events.contains { $0.reportsDoubt }, "\(directory.events)")
  }
}
