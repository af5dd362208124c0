// The effects of kernel calls that failed, or that were made many times.

import EventLoops
import Glibc
import Testing

@Suite("The kernel's side of an event loop")
struct EventLoopRecoveryTests {
  @Test("a descriptor is watched again although the kernel kept it when it was deregistered")
  func notForgotten() throws {
    let loop = try EventLoop()
    let pipe = try Pipe()
    let watched = dup(pipe.reading)
    defer { close(watched) }
    try loop.register(watched, .readable) { _ in Issue.record("the first handler is called") }
    // This number temporarily belongs to another file, so the kernel has nothing to remove.
    let other = try Pipe()
    dup2(other.reading, watched)
    loop.deregister(watched)
    dup2(pipe.reading, watched)
    var calls = 0
    try loop.register(watched, .readable) { _ in
      calls += 1
      loop.stop()
    }
    pipe.send()
    loop.schedule(after: .seconds(20)) { loop.stop() }
    loop.run()
    #expect(calls == 1)
  }

  @Test("reserving space takes none")
  func room() {
    // Together they would exceed the address space.
    for _ in 0..<300 { #expect(AddressSpace.hasRoom(for: 1 << 40)) }
    #expect(!AddressSpace.hasRoom(for: 1 << 48) && !AddressSpace.hasRoom(for: .max))
  }

  @Test("the age of a file is correct to the millisecond")
  func birth() throws {
    var path = Array("/tmp/sluice-birth.XXXXXX".utf8CString)
    // The kernel's time for files may be a tick behind.
    let before = WallClock.now.sinceEpoch - 20
    let file = mkstemp(&path)
    try #require(file >= 0)
    defer {
      unlink(path)
      close(file)
    }
    let name = path.withUnsafeBufferPointer {
      String(decoding: $0.dropLast().map(UInt8.init(bitPattern:)), as: UTF8.self)
    }
    // Not every file system provides it.
    guard let birth = WallClock(birthOf: name, in: AT_FDCWD) else { return }
    #expect((before...WallClock.now.sinceEpoch).contains(birth.sinceEpoch) && (0..<1000).contains(birth.milliseconds))
    #expect(WallClock(birthOf: name + "-not", in: AT_FDCWD) == nil)
  }
}
