// Tests that a special file, or a file of any size, in the place of one of the server's files stops nothing else.

import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Special files in the directory of a server")
struct SpecialFileTests {
  private enum Kind: Int, CaseIterable {
    case fifo, socket, device, sparse

    /// Returns false if it cannot be made here.
    func make(_ path: String) -> Bool {
      switch self {
      case .fifo: return mkfifo(path, 0o600) == 0
      case .socket: return mknod(path, S_IFSOCK | 0o600, 0) == 0
      // The numbers of /dev/zero. Only root may use them.
      case .device: return mknod(path, S_IFCHR | 0o600, 0x105) == 0
      case .sparse:
        let file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
        defer { close(file) }
        return ftruncate(file, 8 << 30) == 0
      }
    }
  }

  private enum Place: CaseIterable {
    case log, gaps, part, complete, newSidecar, hiddenSidecar, sidecar, record, newRecord

    private static let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")

    /// The file's path in the server's directory.
    func path(_ upload: String) -> String {
      switch self {
      case .log: StreamParts.path(Self.name.base)
      case .gaps: Self.name.gaps
      case .part: Self.name.partial
      case .complete: Self.name.final
      case .newSidecar: Self.name.newSidecar
      case .hiddenSidecar: Self.name.pendingSidecar
      case .sidecar: Self.name.sidecar
      case .record: upload.dropFirst() + ".upload"
      case .newRecord: ".uploads/record-0.new"
      }
    }

    /// Whether a request of the test requires the file, and is refused without it.
    var isRequired: Bool { [.log, .gaps, .part, .complete, .newSidecar, .sidecar].contains(self) }
  }

  @Test(
    "a special file in the place of any file is reported, and stops neither the server nor other streams",
    arguments: Kind.allCases.map(\.rawValue))
  func others(_ kind: Int) async {
    await #expect(processExitsWith: .success) { [kind = kind as Int] in
      // A server that waits for the other end of a FIFO would never end.
      alarm(300)
      for place in Place.allCases { try SpecialFileTests.run(Kind(rawValue: kind) ?? .fifo, place) }
    }
  }

  private static func run(_ kind: Kind, _ place: Place) throws {
    // This is a recording of any size.
    if kind == .sparse, [.part, .complete].contains(place) { return }
    let directory = TemporaryDirectory()
    let first = try TestServer(in: directory) { $0.threads = 1 }
    try first.plain(id: "a", Array("abc".utf8))
    let upload = try first.create("/u.txt", ["Stream-ID: b"])
    try first.append(upload, at: 0, "abc")
    let path = place.path(upload)
    mkdir("\(directory.path)/.parts", 0o700)
    unlink("\(directory.path)/\(path)")
    guard kind.make("\(directory.path)/\(path)") else { return first.stop() }

    // Each request is answered, whether it requires the file or not.
    let answer = try RawClient.sendPlain(first, id: "a", offset: 3, "def")
    for _ in 0..<2 {
      let client = try first.connect()
      try client.patch(upload, at: 3, body: "def")
      _ = try client.final()
    }
    let creation = try first.connect()
    try creation.request("POST", "/v.txt", ["Upload-Complete: ?0", "Stream-ID: c"], body: "")
    let created = try creation.final().answer.status
    // One upload's record does not stop the others, and neither does the file that the next record replaces.
    try require(created == 201, "\(kind), \(place): \(created)")
    try require(try RawClient.sendPlain(first, id: "x", "x").status == 201, "\(kind), \(place): others are served")
    if kind == .fifo, place.isRequired {
      let name = path.split(separator: "/").last ?? ""
      let isReported = first.events.all.contains {
        $0.reason?.contains(name) == true && $0.reason?.contains("not a regular file") == true
      }
      try require(isReported, "\(place): \(first.events.all)")
      try require(answer.body.contains("\(name) (not a regular file)"), "\(place): \(answer)")
    }
    first.stop()

    let next = try TestServer(in: directory) { ($0.threads, $0.finishAfter) = (1, .milliseconds(100)) }
    try next.plain(id: "y", Array("abc".utf8))
    // The recording of the first stream is to be closed before this one.
    _ = try next.events.wait("\(kind), \(place): others are closed") { events in
      events.first { $0.kind == .closed && $0.stream == "y" }
    }
    try require(try RawClient.sendPlain(next, id: "z", "x").status == 201, "\(kind), \(place): others are served")
    next.stop()
  }

  @Test("an error is about a special file only if one was found, and not because a call reports invalid arguments")
  func specialFiles() throws {
    let directory = TemporaryDirectory()
    #expect(mkdir("\(directory.path)/folder", 0o700) == 0 && mkfifo("\(directory.path)/pipe", 0o600) == 0)
    #expect(symlink("pipe", "\(directory.path)/link") == 0)
    let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    defer { close(descriptor) }
    for name in ["folder", "pipe", "link"] {
      let path = "\(directory.path)/\(name)"
      let error = #expect(throws: SystemError.self) { _ = try RegularFile.open(path, O_RDONLY) }
      #expect(error?.isSpecialFile == true && error?.cause == error?.description, "\(name)")
      let unopened = #expect(throws: SystemError.self) { try RegularFile.check(name, in: descriptor) }
      #expect(unopened?.isSpecialFile == true && unopened?.code == error?.code, "\(name)")
    }
    let invalid = SystemError(operation: "read a.sidecar", code: EINVAL)
    #expect(!invalid.isSpecialFile && invalid.cause == "Invalid argument")
  }

  @Test("a recording with as many gaps as can be read gets no further one, and can be closed")
  func manyGaps() throws {
    let directory = TemporaryDirectory()
    let store = try FileStore(in: directory)
    let name = StreamName(path: "/h.txt", streamID: "a", mediaType: "text/plain")
    try directory.write(name.gaps, [])
    #expect(truncate("\(directory.path)/\(name.gaps)", off_t(FileStore.largestGaps)) == 0)
    #expect(throws: SystemError(operation: "add another gap to \(name.gaps)", code: EFBIG)) {
      try store.note(GapRecord(offset: 9, length: 1, cause: .notReceived), name)
    }
    #expect(
      try store.note(GapRecord(offset: 9, length: 0, cause: .interrupted), name) == Int(FileStore.largestGaps))
  }
}
