// Tests whether a changed file is noticed, even if its times are the same.

import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import UploadClient

@Suite("The version of a file")
struct FileVersionTests {
  private func version(_ path: String) throws -> FileVersion {
    var status = stat()
    guard stat(path, &status) == 0 else { throw TestFailure(path) }
    return FileVersion(status)
  }

  @Test("a write in the same tick of the clock is noticed if the file is watched")
  func sameTimes() throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("f", "abc")
    let same = try version(path)
    #expect(same.change(to: same) { true } == "its content was written")
    #expect(same.change(to: same) { false } == nil)
    #expect(same.change(to: same) { nil } == nil && same.change(to: same) == nil)
  }

  @Test("a changed permission counts only if the file cannot be watched, and a write in any case")
  func changed() throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("f", "abc")
    let descriptor = open(path, O_RDWR)
    defer { close(descriptor) }
    let writes = try #require(FileWrites(of: descriptor))
    let before = try version(path)
    // The kernel's clock has moved on once the time of the last change differs.
    repeat { chmod(path, 0o600) } while try version(path).changed == before.changed
    #expect(before.change(to: try version(path)) { writes.any } == nil)
    #expect(before.change(to: try version(path)) { nil }?.contains("cannot be watched") == true)
    #expect(pwrite(descriptor, "x", 1, 0) == 1)
    #expect(before.change(to: try version(path)) { writes.any } == "its content was written")
  }
}
