// Files in the folders of a spool that Sluice has not created.

import Glibc
import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

@Suite("Files of other programs in a spool")
struct ForeignFileTests {
  private let temporary: TemporaryFolder
  private let pattern = OffsetPattern()
  private static let name = "1795403376004-57f93922e6ee4bd9.spool"

  init() throws { temporary = try TemporaryFolder() }

  private var folder: String { "\(temporary.path)/kitchen" }

  private func open() throws -> SpoolFolder { try SpoolFolder(directory: temporary.path, stream: "kitchen") }

  /// Creates a stretch with some bytes.
  private func makeStretch(in folder: SpoolFolder) throws -> SpoolFile {
    let file = try SpoolFile.create(in: folder, description: "", capacity: 1 << 20)
    try file.append(pattern, at: 0, count: 5000)
    try file.commit()
    return file
  }

  private func write(_ text: String, _ name: String) throws {
    let file = try SpoolDescriptor("\(folder)/\(name)", flags: O_RDWR | O_CREAT | O_EXCL, disk: .system)
    if !text.isEmpty { try file.write(Array(text.utf8), at: 0) }
  }

  private func content(_ name: String) throws -> String {
    let file = try SpoolDescriptor("\(folder)/\(name)", flags: O_RDONLY, disk: .system)
    return String(decoding: try file.read(100, at: 0), as: UTF8.self)
  }

  @Test("a spool removes only the unfinished files of stretches")
  func unfinishedFiles() throws {
    try #require(mkdir(folder, 0o700) == 0)
    let foreign = [
      ".rc", ".new", ".notes.new", ".x.spool.new", "plain.new", "x.spool", ".\(Self.name)", "\(Self.name).new",
      ".+\(Self.name).new", ".0\(Self.name).new", ".\(Self.name.dropLast(6).uppercased()).spool.new",
      ".1795403376004-57f93922.spool.new",
    ]
    for name in foreign + [".\(Self.name).new"] { try write("precious", name) }
    #expect(try open().stretches() == [])
    #expect(try Set(SystemSpoolDisk().names(in: folder)) == Set(foreign + ["lock"]))
    for name in foreign { #expect(try content(name) == "precious", "\(name)") }
  }

  @Test(
    "a lock file of another program stays as it is, and only a stretch makes its folder that of a stream",
    arguments: ["precious\n", "x4711\n", "4711 host\n", "0x12\n", "12345678901234567\n"])
  func foreignLock(text: String) throws {
    try #require(mkdir(folder, 0o700) == 0)
    try write(text, "lock")
    #expect(throws: SpoolError(.foreignLock, path: "\(folder)/lock")) { try open() }
    #expect(try content("lock") == text)
    #expect(try SpoolFolder.streams(in: temporary.path) == [])
    try write("", Self.name)
    #expect(try SpoolFolder.streams(in: temporary.path) == ["kitchen"])
    #expect(try SpoolFolder.user(of: folder) == .nobody)
  }

  @Test(
    "the lock file of an earlier process gets the id of this one, even if a power failure has damaged it",
    arguments: ["", "1\n", "4194304\n", "999\n5\n", "\0\0\0\0\0"])
  func ownLock(text: String) throws {
    try #require(mkdir(folder, 0o700) == 0)
    try write(text, "lock")
    #expect(try SpoolFolder.streams(in: temporary.path) == ["kitchen"])
    let opened = try open()
    #expect(try content("lock") == "\(getpid())\n")
    withExtendedLifetime(opened) {}
  }

  enum SpecialFile: CaseIterable, Sendable {
    case fifo, socket, folder, link

    func make(_ path: String) -> Bool {
      switch self {
      case .fifo: mkfifo(path, 0o600) == 0
      case .socket: mknod(path, S_IFSOCK | 0o600, 0) == 0
      case .folder: mkdir(path, 0o700) == 0
      case .link: symlink("/nowhere", path) == 0
      }
    }
  }

  // If it is opened like a regular file, a FIFO blocks these tests for ever.

  @Test("a special file with the name of a stretch is refused, and not waited for", arguments: SpecialFile.allCases)
  func stretch(_ kind: SpecialFile) throws {
    let path = "\(folder)/\(Self.name)"
    let intact: String
    do {
      let folder = try open()
      intact = try makeStretch(in: folder).path
      try #require(kind.make(path))
      for access in [SpoolFile.Access.readOnly, .readWrite] {
        #expect(throws: SpoolError(.notARegularFile, path: path)) { try SpoolFile.open(path, access: access) }
      }
    }
    defer { rmdir(path) }
    #expect(try Set(SpoolEntry.all(at: temporary.path).map(\.path)) == [path, intact])
    #expect(try SpoolFolder.user(of: folder) == .nobody)
    #expect(try SpoolFile.open(intact, folder: open()).head == 5000)
  }

  @Test("a stretch that cannot be opened does not hide the user of another one", arguments: [EACCES, EIO])
  func unreadableStretch(code: Int32) throws {
    let disk = TestDisk()
    try disk.makeFolder("/spool", mode: 0o700)
    let folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
    disk.place([], at: "/spool/s/1000000000000-57f93922e6ee4bd9.spool")
    let file = try SpoolFile.create(in: folder, description: "", capacity: 0)
    // Only the lock of the stretch itself shows the user.
    try disk.unlink("/spool/s/lock")
    for user in [SpoolFolder.User.process(nil), .nobody] {
      disk.resetCalls()
      // The first file is the missing lock.
      disk.faults[.open] = [2: .error(code)]
      #expect(try SpoolFolder.user(of: "/spool/s", disk: disk) == user)
      file.close()
    }
  }

  @Test(
    "the removal of a stretch leaves a special file with such a name", arguments: SpecialFile.allCases,
    [0o600, 0] as [mode_t])
  func removedSpecialFile(_ kind: SpecialFile, mode: mode_t) throws {
    let path = "\(folder)/\(Self.name)"
    try #require(mkdir(folder, 0o700) == 0 && kind.make(path))
    defer { rmdir(path) }
    if kind != .link { try #require(chmod(path, mode) == 0) }
    let entry = SpoolEntry(directory: temporary.path, stream: "kitchen", path: path)
    #expect(throws: SpoolError(.notARegularFile, path: path)) { try entry.remove() }
    #expect(try SystemSpoolDisk().names(in: folder) == [Self.name])
  }

  @Test("the removal of a stretch removes any regular file with such a name", arguments: ["", "none"])
  func removedRegularFile(text: String) throws {
    try #require(mkdir(folder, 0o700) == 0)
    try write(text, Self.name)
    try SpoolEntry(directory: temporary.path, stream: "kitchen", path: "\(folder)/\(Self.name)").remove()
    #expect(try SystemSpoolDisk().names(in: folder) == [])
  }

  @Test("a special file with the name of the lock is refused, and not waited for", arguments: SpecialFile.allCases)
  func lock(_ kind: SpecialFile) throws {
    let path = "\(folder)/lock"
    try #require(mkdir(folder, 0o700) == 0 && kind.make(path))
    defer { rmdir(path) }
    #expect(throws: SpoolError(.notARegularFile, path: path)) { try open() }
    #expect(try SpoolFolder.user(of: folder) == .nobody)
    #expect(try SpoolFolder.streams(in: temporary.path) == [])
  }

  @Test(
    "a special file with the name of the lock in memory is reported to a process that needs this lock, and no other",
    arguments: SpecialFile.allCases)
  func lockInMemory(_ kind: SpecialFile) throws {
    let sum = String(SpoolFolder.sum(of: SpoolFolder.resolved(folder)), radix: 16)
    let path = "/dev/shm/sluice-\(sum).lock"
    try #require(kind.make(path))
    defer { if kind == .folder { rmdir(path) } else { unlink(path) } }
    let error = SpoolError(.notARegularFile, path: path)
    let disk = TestDisk()
    disk.lasting[.makeFolder] = (from: 0, code: ENOSPC)
    #expect(throws: error) {
      try SpoolFolder(directory: temporary.path, stream: "kitchen", disk: disk, mayLackSpace: true)
    }
    #expect(throws: error) { try SpoolFolder(directory: temporary.path, stream: "kitchen", makesFolder: false) }
    #expect(try open().stretches() == [])
    #expect(try SpoolFolder.user(of: folder) == .nobody)
  }
}
