import Glibc
import PropertyTesting
import Testing

@testable import Spool

/// A folder that is removed with its object.
final class TemporaryFolder: Sendable {
  let path: String

  init() throws {
    var template = Array("/tmp/sluice-spool-XXXXXX".utf8CString)
    guard mkdtemp(&template) != nil else { throw Failure() }
    path = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }

  struct Failure: Error {}

  deinit {
    for folder in (try? SystemSpoolDisk().names(in: path)) ?? [] {
      for name in (try? SystemSpoolDisk().names(in: "\(path)/\(folder)")) ?? [] { unlink("\(path)/\(folder)/\(name)") }
      rmdir("\(path)/\(folder)")
    }
    rmdir(path)
  }
}

extension OffsetPattern {
  /// The stream's bytes from `position` on.
  func bytes(_ count: Int, at position: UInt64) -> [UInt8] {
    [UInt8](unsafeUninitializedCapacity: count) { buffer, initialized in
      for start in stride(from: 0, to: count, by: 65_000) {
        let part = UnsafeMutableRawBufferPointer(buffer)[start..<min(count, start + 65_000)]
        fill(UnsafeMutableRawBufferPointer(rebasing: part), at: position + UInt64(start))
      }
      initialized = count
    }
  }
}

extension SpoolFile {
  /// Appends the pattern's bytes at a position.
  func append(_ pattern: OffsetPattern, at position: UInt64, count: Int, time: Int64 = 0) throws {
    let bytes = pattern.bytes(count, at: position)
    try bytes.withUnsafeBytes { try append($0, at: position, time: time) }
  }

  func commit(state: String = "", sync: Bool = true) throws {
    try commit(state: state, pausedByteCount: 0, pauses: [], isFinished: false, sync: sync)
  }

  /// All bytes from `position` to the head, and the missing ranges between them.
  func readAll(from position: UInt64, step: Int = 65_000) throws -> (
    bytes: [(UInt64, [UInt8])], missing: [Range<UInt64>]
  ) {
    var found: [(UInt64, [UInt8])] = []
    var missing: [Range<UInt64>] = []
    var position = position
    var buffer = [UInt8](repeating: 0, count: step)
    while true {
      switch try buffer.withUnsafeMutableBytes({ try read(at: position, into: $0) }) {
      case .bytes(let count):
        found.append((position, Array(buffer[..<count])))
        position += UInt64(count)
      case .missing(let next), .unreadable(let next, _):
        missing.append(position..<next)
        position = next
      case .end: return (found, missing)
      }
    }
  }
}

@Suite("Spool files")
struct SpoolRoundTripTests {
  let temporary: TemporaryFolder
  let pattern = OffsetPattern()

  init() throws { temporary = try TemporaryFolder() }

  @Test(
    "a spool returns the appended bytes, before and after it is reopened", arguments: [1, 31, 4064, 5000, 65_536])
  func roundTrip(piece: Int) throws {
    let total = 300_000
    let path: String
    do {
      let folder = try SpoolFolder(directory: temporary.path, stream: "kitchen")
      let file = try SpoolFile.create(in: folder, description: "a stretch", capacity: 1 << 20)
      path = file.path
      var position = 0
      while position < (piece == 1 ? 9000 : total) {
        try file.append(pattern, at: UInt64(position), count: piece, time: 7)
        position += piece
      }
      try expectPattern(file, to: UInt64(position))
      try file.commit(state: "sent to here")
    }
    let folder = try SpoolFolder(directory: temporary.path, stream: "kitchen")
    #expect(try folder.stretches() == [path])
    let file = try SpoolFile.open(path, folder: folder)
    #expect(file.description == "a stretch")
    #expect(file.checkpoint.state == "sent to here")
    #expect(file.damage.isEmpty)
    try expectPattern(file, to: UInt64((piece == 1 ? 9000 : total) + piece - 1) / UInt64(piece) * UInt64(piece))
    #expect(try file.time(at: 0) == 7)
    try file.remove()
    #expect(try folder.stretches().isEmpty)
  }

  private func expectPattern(_ file: SpoolFile, to head: UInt64) throws {
    #expect(file.head == head)
    let (bytes, missing) = try file.readAll(from: 0)
    #expect(missing.isEmpty)
    #expect(bytes.reduce(0) { $0 + UInt64($1.1.count) } == head)
    for (position, piece) in bytes {
      #expect(piece.withUnsafeBytes { pattern.matches($0, at: position) })
    }
  }

  @Test("bytes after the last commit are recovered in whole blocks")
  func afterTheCheckpoint() throws {
    let folder = try SpoolFolder(directory: temporary.path, stream: "kitchen")
    let file = try SpoolFile.create(in: folder, description: "", capacity: 1 << 20)
    try file.append(pattern, at: 0, count: 5000)
    try file.commit()
    try file.append(pattern, at: 5000, count: 20_000)
    let recovered = try SpoolFile.open(file.path, access: .readOnly)
    try expectPattern(recovered, to: 25_000 / 4064 * 4064)
    #expect(recovered.damage.isEmpty)
  }

  @Test("the ring accepts new bytes only after old ones are released or evicted")
  func ring() throws {
    let folder = try SpoolFolder(directory: temporary.path, stream: "kitchen")
    let file = try SpoolFile.create(in: folder, description: "", capacity: 10 * 4064)
    try file.append(pattern, at: 0, count: 10 * 4064 + 4000)
    #expect(throws: SpoolError(.full, path: file.path)) { try file.append(pattern, at: file.head, count: 64) }
    file.release(upTo: 4063)
    #expect(throws: SpoolError(.full, path: file.path)) { try file.append(pattern, at: file.head, count: 64) }
    file.release(upTo: 4064)
    try file.append(pattern, at: file.head, count: 64)
    file.evict(upTo: 6 * 4064)
    try file.append(pattern, at: file.head, count: 5 * 4064)
    #expect((file.released, file.oldest, file.head) == (4064, 6 * 4064, 16 * 4064))
    let (bytes, missing) = try file.readAll(from: 4064)
    #expect(missing == [4064..<6 * 4064])
    #expect(bytes.first?.0 == 6 * 4064)
    for (position, piece) in bytes { #expect(piece.withUnsafeBytes { pattern.matches($0, at: position) }) }
  }

  @Test("a second object cannot open the folder while one has it")
  func lock() throws {
    do {
      let folder = try SpoolFolder(directory: temporary.path, stream: "kitchen")
      #expect(throws: SpoolError(.inUse(getpid()), path: folder.path)) {
        try SpoolFolder(directory: temporary.path, stream: "kitchen")
      }
      #expect(try SpoolFolder.user(of: folder.path) == .process(getpid()))
    }
    _ = try SpoolFolder(directory: temporary.path, stream: "kitchen")
    #expect(try SpoolFolder.user(of: "\(temporary.path)/kitchen") == .nobody)
    #expect(try SpoolFolder.streams(in: temporary.path) == ["kitchen"])
  }

  @Test("without the folder's lock file, stretches are still found, and only one object can write to each")
  func removedLock() throws {
    let lock = "\(temporary.path)/kitchen/lock"
    let path: String
    do {
      let folder = try SpoolFolder(directory: temporary.path, stream: "kitchen")
      let file = try SpoolFile.create(in: folder, description: "", capacity: 10 * 4064)
      path = file.path
      try file.append(pattern, at: 0, count: 5000)
      try #require(unlink(lock) == 0)
      #expect(try SpoolFolder.streams(in: temporary.path) == ["kitchen"])
      #expect(try SpoolFolder.user(of: folder.path) == .process(nil))
      let other = try SpoolFolder(directory: temporary.path, stream: "kitchen")
      #expect(throws: SpoolError(.inUse(nil), path: path)) { try SpoolFile.open(path, folder: other) }
      #expect(try SpoolFile.open(path, access: .readOnly).id == file.id)
      let entry = try #require(SpoolEntry.all(at: temporary.path).first)
      #expect(throws: SpoolError(.inUse(nil), path: path)) { try entry.remove() }
      try file.append(pattern, at: 5000, count: 5000)
      try file.commit(state: "", pausedByteCount: 0, pauses: [], isFinished: true, sync: true)
    }
    try #require(unlink(lock) == 0)
    #expect(try SpoolFolder.user(of: "\(temporary.path)/kitchen") == .nobody)
    let entries = try SpoolEntry.all(at: temporary.path)
    #expect(entries.map(\.path) == [path])
    do {
      let file = try SpoolFile.open(path)
      #expect(file.head == 10_000)
      #expect(throws: SpoolError(.inUse(nil), path: path)) { try SpoolFile.open(path) }
    }
    try entries[0].remove()
    #expect(try SpoolFolder.streams(in: temporary.path) == [])
  }
}
