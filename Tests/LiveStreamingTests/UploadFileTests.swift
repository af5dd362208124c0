// A file as the content of an upload, without a server.

import Digests
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import ResumableUploads
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("A file to upload")
struct UploadFileTests {
  private let pattern = OffsetPattern(seed: 3)
  private let directory: TemporaryDirectory

  init() throws { directory = try TemporaryDirectory() }

  private func file(_ count: Int, digest: DigestAlgorithm? = nil) throws -> UploadFile {
    try UploadFile(path: try directory.write("data", patternBytes(pattern, 0, count)), digest: digest)
  }

  /// The number of this process's descriptors of a file.
  private func descriptors(of path: String) throws -> Int {
    try fileNames(in: "/proc/self/fd").count { name in
      var target = [CChar](repeating: 0, count: 4096)
      let count = readlink("/proc/self/fd/\(name)", &target, target.count)
      return count > 0 && String(decoding: target[..<count].map(UInt8.init(bitPattern:)), as: UTF8.self) == path
    }
  }

  @Test(
    "a file of any size has that size and the digest of all its bytes",
    arguments: [0, 1, 2, 65_535, 65_536, 65_537, 1 << 20, 2_500_000])
  func sizes(_ count: Int) throws {
    let file = try file(count, digest: .sha256)
    let bytes = patternBytes(pattern, 0, count)
    #expect(file.size == UInt64(count) && file.change == nil)
    #expect(file.digest?.isEqual(to: Digest(.sha256, of: bytes.span.bytes)) == true)
    #expect(try self.file(count).digest == nil)
  }

  @Test("what is not a regular file with its own size is refused with the reason, and nothing stays open")
  func refused() throws {
    #expect(throws: UploadFileError.directory) { try UploadFile(path: directory.path) }
    #expect(throws: UploadFileError.notRegular) { try UploadFile(path: "/dev/null") }
    #expect(throws: UploadFileError.unknownSize) { try UploadFile(path: "/proc/self/limits") }
    #expect(try descriptors(of: "/proc/\(getpid())/limits") == 0)
    let missing = directory.path + "/missing"
    let error = SystemError(operation: "stat \(missing)", code: ENOENT)
    #expect(throws: UploadFileError.unreadable(error)) { try UploadFile(path: missing) }
  }

  @Test("an opened file has one descriptor, and a dropped one has none")
  func closed() throws {
    let path: String
    do {
      let file = try file(10)
      path = file.path
      #expect(try descriptors(of: path) == 1)
      withExtendedLifetime(file) {}
    }
    #expect(try descriptors(of: path) == 0)
  }

  /// Something that happens to the file `data` in the directory `folder`.
  enum Fate: String, CaseIterable {
    case none, written, grown, shortened, replaced, moved, folderMoved, folderReplaced, loop, removed
  }

  @Test(
    "each change of an opened file has its own words, and a removed or unresolved one is none", arguments: Fate.allCases
  )
  func changes(_ fate: Fate) throws {
    let folder = directory.path + "/folder"
    #expect(mkdir(folder, 0o700) == 0)
    let path = try directory.write("folder/data", [1, 2, 3])
    let file = try UploadFile(path: path)
    let other = try directory.write("other", [1, 2, 3])
    let expected: String?
    switch fate {
    case .none: expected = nil
    case .written:
      try directory.write("folder/data", [1, 2, 4])
      expected = "its content was written"
    case .grown:
      try directory.write("folder/data", [1, 2, 3, 4])
      expected = "it grew from 3 to 4 bytes"
    case .shortened:
      #expect(truncate(path, 2) == 0)
      expected = "it was shortened from 3 to 2 bytes"
    case .replaced:
      #expect(rename(other, path) == 0)
      expected = "another file replaced it"
    case .moved:
      #expect(rename(path, folder + "/moved") == 0)
      expected = "it was moved"
    case .folderMoved:
      #expect(rename(folder, folder + "2") == 0)
      expected = "it was moved"
    case .folderReplaced:
      // stat(2) then fails with ENOTDIR.
      #expect(rename(folder, folder + "2") == 0 && rename(other, folder) == 0)
      expected = "it was moved"
    case .loop:
      // stat(2) then fails with ELOOP.
      #expect(rename(folder, folder + "2") == 0 && symlink(folder, folder) == 0)
      expected = nil
    case .removed:
      #expect(unlink(path) == 0)
      expected = nil
    }
    #expect(file.change == expected)
    let fault = FileContent(file).fault
    if let expected {
      #expect(fault?.kind == .source && fault?.isFileChanged == true)
      #expect(fault?.description == "\(path) changed while it was being sent: \(expected). Upload it again.")
    } else {
      #expect(fault == nil)
    }
  }

  private func range(_ content: FileContent, _ offset: UInt64, _ maximum: UInt64?) throws -> Range<UInt64>? {
    let body = try content.openBody([], from: offset, maximum: maximum)
    switch body {
    case .file(let file): return file.range
    case .none: return nil
    case .empty: return nil
    case .stream: return nil
    case .bytes: return nil
    }
  }

  @Test("all bytes of a file are available at any time, and a body has those that are asked for")
  func content() throws {
    let content = FileContent(try file(1000, digest: .sha256))
    #expect(content.oldest == 0 && content.head == 1000 && content.newest == 1000 && content.isFinished)
    #expect(content.capacity == 0 && content.pausedByteCount == 0 && content.pause == nil && content.fault == nil)
    #expect(content.supply.oldest == 0 && content.supply.head == 1000 && content.supply.isFinished)
    for (offset, rest) in [(0, 1000), (1, 999), (1000, 0), (1001, 0)] as [(UInt64, UInt64)] {
      #expect(content.byteCount(from: offset) == rest)
    }
    let bodies: [(offset: UInt64, maximum: UInt64?, range: Range<UInt64>)] = [
      (0, nil, 0..<1000), (400, nil, 400..<1000), (400, 50, 400..<450), (400, 601, 400..<1000),
      (1000, nil, 1000..<1000),
    ]
    for (offset, maximum, expected) in bodies { #expect(try range(content, offset, maximum) == expected) }
    // It never waits for bytes, and its end is already known.
    #expect(!content.endBody(atLeast: 0) && !content.requestWakeUp(at: 1000))
    #expect(content.digest(since: 0)?.upTo == 1000 && content.digest(since: 1) == nil)
    #expect(FileContent(try file(1000)).digest(since: 0) == nil)
  }
}

@Suite("Bytes of a source that can repeat them")
struct RepeatableBytesTests {
  private final class Source: RepeatableSource, @unchecked Sendable {
    var head: UInt64 = 0
    var isFinished = false
    func start(on loop: EventLoop, arrived: @escaping () -> Void) {}
    func stop() { isFinished = true }
    func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> Int {
      let bytes = [UInt8](repeating: 0, count: maximum)
      return body(bytes.span.bytes)
    }
  }

  @Test("they end as if a buffer had kept them: what exceeds its size or was released is gone")
  func kept() {
    let source = Source()
    let bytes = RepeatableBytes(source, capacity: 100)
    func expect(_ oldest: UInt64, _ head: UInt64) {
      #expect(bytes.oldest == oldest && bytes.head == head && bytes.newest == head && bytes.extent == oldest..<head)
      for offset in oldest..<head {
        guard case .bytes(let count) = bytes.read(at: offset, maximum: .max, { $0.byteCount }) else {
          Issue.record("nothing at \(offset)")
          return
        }
        #expect(count == Int(head - offset))
      }
      if case .empty = bytes.read(at: head, maximum: 10, { $0.byteCount }) {} else { Issue.record("more") }
      if oldest > 0 {
        guard case .overwritten(oldest: let found) = bytes.read(at: oldest - 1, maximum: 10, { $0.byteCount }) else {
          Issue.record("a byte before the oldest")
          return
        }
        #expect(found == oldest)
      }
      #expect(bytes.byteCount(from: oldest) == head - oldest && bytes.byteCount(from: head + 1) == 0)
    }
    expect(0, 0)
    source.head = 99
    expect(0, 99)
    source.head = 100
    expect(0, 100)
    source.head = 101
    expect(1, 101)
    bytes.release(upTo: 50)
    bytes.release(upTo: 40)
    expect(50, 101)
    source.head = 200
    expect(100, 200)
  }

  @Test("a wake-up is granted only for bytes that may still come")
  func wakeUps() {
    let source = Source()
    let bytes = RepeatableBytes(source, capacity: 100)
    source.head = 10
    #expect(bytes.requestWakeUp(beyond: 10) && bytes.requestWakeUp(beyond: 11) && !bytes.requestWakeUp(beyond: 9))
    source.stop()
    for offset: UInt64 in 9...11 { #expect(!bytes.requestWakeUp(beyond: offset)) }
    #expect(bytes.isFinished)
  }
}
