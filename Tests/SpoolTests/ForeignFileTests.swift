// Files in the folders of a spool that Sluice has not created.

import Glibc
import PropertyTesting
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

  enum SpecialFile: CaseIterable, Sendable {
    case fifo, socket, folder

    func make(_ path: String) -> Bool {
      switch self {
      case .fifo: mkfifo(path, 0o600) == 0
      case .socket: mknod(path, S_IFSOCK | 0o600, 0) == 0
      case .folder: mkdir(path, 0o700) == 0
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

  @Test("a special file with the name of the lock is refused, and not waited for", arguments: SpecialFile.allCases)
  func lock(_ kind: SpecialFile) throws {
    let path = "\(folder)/lock"
    try #require(mkdir(folder, 0o700) == 0 && kind.make(path))
    defer { rmdir(path) }
    #expect(throws: SpoolError(.notARegularFile, path: path)) { try open() }
    #expect(try SpoolFolder.user(of: folder) == .nobody)
    #expect(try SpoolFolder.streams(in: temporary.path) == [])
  }
}
