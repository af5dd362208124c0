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

  @Test("a described file is the same if its content is, and its inode or the time of its last change as well")
  func described() throws {
    let directory = try TemporaryDirectory()
    let own = try version(try directory.write("f", "abc"))
    let members = own.description.split(separator: ", ").map(String.init)
    try #require(members.count == 4)
    /// With some members changed, and the last ones omitted.
    func isSame(without omitted: Int = 0, changing changed: Set<Int> = []) -> Bool {
      let text = members.enumerated().map { changed.contains($0) ? $1 + "0" : $1 }.dropLast(omitted)
      return own.isSame(asDescribed: text.joined(separator: ", "))
    }
    #expect(isSame())
    #expect(!isSame(changing: [0]) && !isSame(changing: [1]))
    #expect(isSame(changing: [2]), "its permissions were changed")
    #expect(isSame(changing: [3]), "its file system has new inodes")
    #expect(!isSame(changing: [2, 3]))
    // Descriptions without an inode, and incomplete ones.
    #expect(isSame(without: 1) && !isSame(without: 1, changing: [2]))
    #expect(!isSame(without: 2) && !isSame(without: 4))
  }

  @Test("each file that is watched needs one descriptor, until it is not watched any more")
  func descriptors() throws {
    let directory = try TemporaryDirectory()
    let descriptor = open(try directory.write("f", "abc"), O_RDWR | O_CLOEXEC)
    defer { close(descriptor) }
    let before = watchCount()
    for _ in 0..<60 {
      let writes = FileWrites(of: descriptor)
      #expect(writes?.any == false)
      #expect(FileWrites(of: -1) == nil, "no such file")
    }
    // Other tests may watch a few.
    #expect(watchCount() - before < 30)
  }

  @Test("a process without standard input can watch a file")
  func withoutStandardInput() async {
    await #expect(processExitsWith: .success) {
      let file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC)
      close(0)
      let writes = FileWrites(of: file)
      let isUsed = fcntl(0, F_GETFD) >= 0
      exit(writes?.any == false && isUsed ? EXIT_SUCCESS : EXIT_FAILURE)
    }
  }

  /// How many descriptors of this process watch files.
  private func watchCount() -> Int {
    (0..<Int32(4096)).count { descriptor in
      var target = [UInt8](repeating: 0, count: 64)
      let length = readlink("/proc/self/fd/\(descriptor)", &target, target.count)
      return String(decoding: target.prefix(max(0, length)), as: UTF8.self) == "anon_inode:inotify"
    }
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
