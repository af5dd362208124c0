// Each call of the real disk, and the limits of allocated and returned space.

import EventLoops
import Glibc
import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

@Suite("The disk of this machine")
struct SystemSpoolDiskTests {
  private let disk = SystemSpoolDisk()
  private let temporary: TemporaryFolder

  init() throws { temporary = try TemporaryFolder() }

  private func code(_ work: () throws(SystemError) -> Void) -> Int32? {
    do throws(SystemError) { try work() } catch { return error.code }
    return nil
  }

  /// How many descriptors of this process are of this test's folder.
  private func descriptorCount() throws -> Int {
    try disk.names(in: "/proc/self/fd").count { name in
      var target = [CChar](repeating: 0, count: 4096)
      let count = max(0, readlink("/proc/self/fd/\(name)", &target, target.count))
      return String(decoding: target[..<count].map(UInt8.init(bitPattern:)), as: UTF8.self).hasPrefix(temporary.path)
    }
  }

  @Test("a file has the requested bytes, size and space")
  func files() throws {
    try disk.makeFolder("\(temporary.path)/s", mode: 0o700)
    let path = "\(temporary.path)/s/file"
    let file = try disk.open(path, flags: O_RDWR | O_CREAT | O_EXCL, mode: 0o600)
    #expect(fcntl(file, F_GETFD) & FD_CLOEXEC != 0, "no child gets it")
    let first = [UInt8](1...100)
    let second = [UInt8](repeating: 7, count: 50)
    let written = try first.withUnsafeBytes { first in
      try second.withUnsafeBytes { second in
        try disk.write([first, second], to: file, at: 1000)
      }
    }
    #expect(written == 150)
    var found = [UInt8](repeating: 9, count: 200)
    let count = try found.withUnsafeMutableBytes { buffer in
      try disk.read(file, into: buffer, at: 1090)
    }
    #expect(count == 60 && Array(found[..<12]) == [91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 7, 7])
    try disk.synchronizeData(file)
    try disk.setSize(file, to: 1 << 20)
    var status = try disk.status(file)
    #expect(status.byteCount == 1 << 20 && status.diskByteCount <= 64 << 10 && status.hasName)
    // Space without bytes, and bytes without space.
    try disk.allocate(file, at: 1 << 20, byteCount: 1 << 20)
    status = try disk.status(file)
    #expect(status.byteCount == 1 << 20 && ((1 << 20)...(1 << 20) + 128 << 10).contains(status.diskByteCount))
    var measured = stat()
    #expect(fstat(file, &measured) == 0 && status.diskByteCount == UInt64(measured.st_blocks) * 512)
    // A file system may keep the space behind the end, but not that of a hole within the file.
    try disk.punchHole(file, at: 1 << 20, byteCount: 1 << 20)
    try disk.punchHole(file, at: 0, byteCount: 4096)
    let allocated = status.diskByteCount
    status = try disk.status(file)
    #expect(status.byteCount == 1 << 20 && status.diskByteCount < allocated, "\(status)")
    #expect(try disk.nextData(file, from: 0) == nil, "there is only a hole")
    let more = try first.withUnsafeBytes { first in
      try disk.write([first], to: file, at: 512 << 10)
    }
    #expect(more == 100)
    #expect(
      try disk.nextData(file, from: 0) == 512 << 10 && disk.nextData(file, from: (512 << 10) + 5) == (512 << 10) + 5)
    #expect(try disk.nextData(file, from: 1 << 20) == nil)
    // After the file system's block.
    let hole = try #require(try disk.nextHole(file, from: 512 << 10))
    #expect(hole > 512 << 10 && hole <= 576 << 10, "\(hole)")
    #expect(try disk.nextHole(file, from: 5) == 5 && disk.nextHole(file, from: 1 << 30) == nil)
    try disk.rename(path, to: path + "2")
    #expect(code { () throws(SystemError) in _ = try disk.open(path, flags: O_RDONLY, mode: 0) } == ENOENT)
    try disk.unlink(path + "2")
    #expect(try !disk.status(file).hasName && descriptorCount() == 1)
    disk.close(file)
    #expect(try descriptorCount() == 0)
  }

  @Test("a closed descriptor is an error of each call")
  func closed() {
    let calls: [(SystemSpoolDisk) throws -> Void] = [
      { try $0.synchronizeData(-1) }, { try $0.setSize(-1, to: 1) }, { try $0.punchHole(-1, at: 0, byteCount: 1) },
      { try $0.allocate(-1, at: 0, byteCount: 1) }, { _ = try $0.status(-1) }, { _ = try $0.nextData(-1, from: 0) },
      { _ = try $0.lock(-1) }, { _ = try $0.isLocked(-1) },
    ]
    for (number, call) in calls.enumerated() {
      let error = #expect(throws: SystemError.self) { try call(disk) }
      #expect(error?.code == EBADF, "\(number)")
    }
  }

  @Test("a folder has its names, can be synced, and is left closed")
  func folders() throws {
    let path = "\(temporary.path)/s"
    #expect(code { () throws(SystemError) in try disk.synchronizeFolder(path) } == ENOENT)
    #expect(code { () throws(SystemError) in _ = try disk.names(in: path) } == ENOENT)
    try disk.makeFolder(path, mode: 0o700)
    #expect(code { () throws(SystemError) in try disk.makeFolder(path, mode: 0o700) } == EEXIST)
    #expect(try disk.names(in: path) == [])
    for name in ["a", ".b", "c"] { disk.close(try disk.open("\(path)/\(name)", flags: O_CREAT | O_RDWR, mode: 0o600)) }
    for _ in 0..<10 {
      #expect(try disk.names(in: path).sorted() == [".b", "a", "c"])
      try disk.synchronizeFolder(path)
    }
    #expect(try descriptorCount() == 0)
    #expect(code { () throws(SystemError) in try disk.unlink("\(path)/d") } == ENOENT)
    #expect(code { () throws(SystemError) in try disk.rename("\(path)/d", to: "\(path)/e") } == ENOENT)
    var status = stat()
    _ = try SpoolFolder(directory: "\(temporary.path)/s", stream: "t")
    #expect(stat("\(path)/t", &status) == 0 && status.st_mode & 0o777 == 0o700)
    unlink("\(path)/t/lock")
    rmdir("\(path)/t")
  }

  @Test("a lock excludes other descriptors, and is released when its own is closed, even if a child has a copy")
  func locks() throws {
    try disk.makeFolder("\(temporary.path)/s", mode: 0o700)
    let path = "\(temporary.path)/s/lock"
    let first = try disk.open(path, flags: O_RDWR | O_CREAT, mode: 0o600)
    let second = try disk.open(path, flags: O_RDWR, mode: 0)
    #expect(try !disk.isLocked(second) && disk.lock(first) && !disk.lock(second) && disk.isLocked(second))
    #expect(try !disk.isLocked(first), "it is its own")
    let copy = fcntl(first, F_DUPFD_CLOEXEC, 0)
    disk.close(first)
    #expect(try !disk.isLocked(second) && disk.lock(second))
    close(copy)
    disk.close(second)
  }

  // MARK: Space

  /// A file in a disk in memory.
  private func make(_ disk: TestDisk, blocks: UInt64) throws -> SpoolFile {
    try disk.makeFolder("/spool", mode: 0o700)
    let folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
    return try SpoolFile.create(in: folder, description: "", capacity: blocks * SpoolFormat.payload)
  }

  @Test("released space is returned in steps of at least 256 blocks after a sync")
  func returnedSteps() throws {
    let disk = TestDisk()
    let file = try make(disk, blocks: 600)
    try file.append(OffsetPattern(seed: 3), at: 0, count: 520 * 4064)
    try file.commit()
    for (released, sync, expected) in [
      (255, true, 0), (256, false, 0), (256, true, 256), (511, true, 256), (513, true, 513),
    ] as [(UInt64, Bool, UInt64)] {
      file.release(upTo: released * 4064)
      try file.commit(sync: sync)
      #expect(disk.punchedByteCount / 4096 == expected && file.returnedBlock == expected, "\(released), \(sync)")
    }
  }

  @Test("without a sync, space is returned in steps of at least 16,384 blocks")
  func returnedUnsynced() throws {
    let disk = TestDisk()
    let file = try make(disk, blocks: 17_000)
    let pattern = OffsetPattern(seed: 3)
    // Only the attempts count.
    disk.lasting[.punchHole] = (from: 1, code: EIO)
    try file.append(pattern, at: 0, count: 4064)
    file.release(upTo: 4064)
    // Everything before the hole is released.
    try file.append(pattern, at: 16_383 * 4064, count: 3 * 4064)
    for (released, attempts) in [(16_383, 0), (16_384, 1), (16_385, 2)] as [(UInt64, Int)] {
      file.release(upTo: released * 4064)
      try file.commit(sync: false)
      #expect(file.oldest == released * 4064 && (disk.calls[.punchHole] ?? 0) == attempts, "\(released)")
    }
  }

  @Test("space is allocated ahead once 64 blocks are kept, as many as are kept")
  func allocatedSteps() throws {
    let disk = TestDisk()
    let file = try make(disk, blocks: 300)
    let pattern = OffsetPattern(seed: 3)
    func allocated(after count: Int) throws -> UInt64 {
      try file.append(pattern, at: file.head, count: count * 4064)
      return disk.allocatedByteCount / 4096
    }
    #expect(try allocated(after: 63) == 0 && file.allocatedBlock == 0)
    // This write begins behind 63 blocks, and the next one behind 64.
    #expect(try allocated(after: 1) == 0)
    #expect(try allocated(after: 1) == 64 && file.allocatedBlock == 128)
    #expect(try allocated(after: 63) == 64)
    #expect(try allocated(after: 1) == 64 + 128 && file.allocatedBlock == 256)
    #expect(try allocated(after: 127) == 64 + 128)
    // Not beyond the ring.
    #expect(try allocated(after: 1) == 64 + 128 + 44 && file.allocatedBlock == 300)
    #expect(!disk.hasAllocatedBeyondEnd)
  }
}
