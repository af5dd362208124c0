// Descriptors that the stream's loop reads itself, and those that only a thread can read.

import CLinux
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("Reading on demand", .serialized)
struct OnDemandReadingTests {
  private static let count = 3_000_000
  private let pattern = OffsetPattern(seed: 47)

  /// What a stream reads.
  enum Input: CaseIterable {
    case pipe, socket, fileInMemory, cachedFile, fileOnDisk, namedPipe
  }

  /// The reading end of an input that gets all of `bytes`, then its end.
  private func open(_ input: Input, _ bytes: [UInt8], in directory: TemporaryDirectory) throws -> Int32 {
    func writer(to descriptor: Int32) throws {
      try NamedThread("test writer") {
        var rest = bytes[...]
        while !rest.isEmpty {
          let count = rest.withUnsafeBytes { write(descriptor, $0.baseAddress, $0.count) }
          guard count > 0 else { break }
          rest = rest.dropFirst(count)
        }
        close(descriptor)
      }.detach()
    }
    func file(_ path: String, isCached: Bool) throws -> Int32 {
      let descriptor = Glibc.open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
      defer { unlink(path) }
      guard bytes.withUnsafeBytes({ write(descriptor, $0.baseAddress, $0.count) }) == bytes.count,
        fsync(descriptor) == 0, lseek(descriptor, 0, SEEK_SET) == 0
      else { throw TestFailure("\(path): \(String(cString: strerror(errno)))") }
      if !isCached { posix_fadvise(descriptor, 0, 0, Int32(POSIX_FADV_DONTNEED)) }
      return descriptor
    }
    var ends: [Int32] = [-1, -1]
    switch input {
    case .pipe:
      #expect(pipe(&ends) == 0)
      try writer(to: ends[1])
      return ends[0]
    case .socket:
      #expect(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0, &ends) == 0)
      try writer(to: ends[1])
      return ends[0]
    case .fileInMemory: return try file("/dev/shm/sluice-on-demand-\(getpid())", isCached: true)
    case .cachedFile: return try file(directory.path + "/cached", isCached: true)
    case .fileOnDisk: return try file(directory.path + "/on-disk", isCached: false)
    case .namedPipe:
      let path = directory.path + "/pipe"
      #expect(mkfifo(path, 0o600) == 0)
      // Opened for both, so that neither end waits for the other.
      let both = Glibc.open(path, O_RDWR | O_CLOEXEC)
      let reading = Glibc.open(path, O_RDONLY | O_CLOEXEC)
      try writer(to: both)
      return reading
    }
  }

  @Test(
    "all bytes of every kind of descriptor arrive, whether the loop or a thread reads it", arguments: Input.allCases)
  func everyKind(_ input: Input) throws {
    signal(SIGPIPE, SIG_IGN)
    let directory = try TemporaryDirectory()
    let server = try ResumableServer()
    try withSession { session throws in
      let descriptor = try open(input, patternBytes(pattern, 0, Self.count), in: directory)
      defer { close(descriptor) }
      let source = try DescriptorSource(descriptor: descriptor)
      let stream = try RunningStream(source, session, server) {
        $0.buffer = .bytes(1 << 20)
        $0.overflow = .wait
      }
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.gaps == 0 && summary.progress.captured == UInt64(Self.count))
    }
    #expect(server.upload(0).isComplete && server.upload(0).matches(pattern, count: Self.count))
  }

  @Test("the loop reads a pipe itself, and its writer never waits while the buffer has room, without any server")
  func outage() throws {
    let port = try freePort()
    try withSession { session throws in
      let pipe = try TestPipe()
      let source = try DescriptorSource(descriptor: pipe.reading)
      let stream = try RunningStream(source, session, "http://127.0.0.1:\(port)/") {
        $0.retry.initialCeiling = .seconds(3600)
        $0.retry.maximumCeiling = .seconds(3600)
        $0.buffer = .bytes(1 << 20)
        $0.overflow = .wait
        $0.retention = 0
      }
      try stream.waitForFailure()
      // Many times what the pipe itself holds.
      #expect(pipe.write(patternBytes(pattern, 0, 1 << 20)))
      let isReadOnDemand = try EventLog<Bool>()
      session.loop.execute { isReadOnDemand.append(source.isReadOnDemand) }
      #expect(try isReadOnDemand.first("the loop") { _ in true })
      stream.streamer.cancel()
      #expect(try stream.summary().progress.captured == 1 << 20)
    }
  }
}
