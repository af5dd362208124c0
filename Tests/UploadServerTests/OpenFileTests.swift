// Tests when the descriptor of a file that several users share is open.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import SyncGate
import Testing

@testable import DiskFiles

@Suite("When a shared file is open", .serialized)
struct OpenFileTests {
  /// What users of a file do.
  enum Step: CaseIterable { case acquire, release, close, shortage }

  /// When it must be open.
  struct Model {
    var users = 0
    var isOpen = true
    /// Whether the last user closes it.
    var isUnwanted = false

    mutating func perform(_ step: Step) {
      switch step {
      case .acquire: (users, isOpen) = (users + 1, true)
      case .release:
        users -= 1
        if users == 0, isUnwanted { (isOpen, isUnwanted) = (false, false) }
      case .close: if users == 0 { isOpen = false } else { isUnwanted = true }
      case .shortage: if users == 0 { isOpen = false }
      }
    }
  }

  @Test("it closes when it is idle, also if it was still in use when it should close", arguments: Seed.several(100))
  func sequences(_ seed: Seed) throws {
    let directory = TemporaryDirectory()
    let files = OpenFiles()
    let path = directory.path + "/f"
    let descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    var status = stat()
    fstat(descriptor, &status)
    let parent = open(directory.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    defer { close(parent) }
    let file = OpenFile(descriptor, "f", in: parent, O_RDWR | O_CLOEXEC, status, files)
    var model = Model()
    var steps: [Step] = []
    var random = seed.generator
    for _ in 0..<30 {
      let step = Step.allCases.randomElement(using: &random) ?? .acquire
      if step == .release, model.users == 0 { continue }
      steps.append(step)
      let wasIdle = model.isOpen && model.users == 0
      model.perform(step)
      switch step {
      case .acquire: #expect(try fcntl(file.acquire(), F_GETFD) >= 0)
      case .release: file.release()
      case .close: file.closeWhenIdle()
      case .shortage: #expect(files.closeIdle() == (wasIdle ? 1 : 0))
      }
      #expect(ForeignChangeTests.isOpen(path) == model.isOpen, "\(steps)")
    }
    for _ in 0..<model.users { file.release() }
  }

  /// Calls `body` with the file `f`, which is closed until it is used, and with its directory.
  private static func withClosedFile(_ body: (OpenFile, TemporaryDirectory) throws -> Void) throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/f"
    let parent = open(directory.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    defer { close(parent) }
    let descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    var status = stat()
    fstat(descriptor, &status)
    let file = OpenFile(descriptor, "f", in: parent, O_RDWR | O_CLOEXEC, status, OpenFiles())
    file.closeWhenIdle()
    try require(!ForeignChangeTests.isOpen(path), "it is closed")
    try body(file, directory)
    file.closeWhenIdle()
    try require(!ForeignChangeTests.isOpen(path), "no descriptor stays open")
  }

  @Test("two threads that open it again at the same time share one descriptor")
  func openedTwice() async {
    // The gate applies to the whole process.
    await #expect(processExitsWith: .success) {
      try OpenFileTests.withClosedFile { file, _ in
        let descriptors = Lock<[Int32]>([])
        open_gate_close("/f")
        let threads = try (0..<2).map { number in
          try NamedThread("user \(number)") {
            let descriptor = (try? file.acquire()) ?? -1
            descriptors.withLock { $0.append(descriptor) }
          }
        }
        try waitUntil("both open it") { open_gate_waiters() == 2 }
        open_gate_open()
        for thread in threads { thread.join() }
        let used = descriptors.withLock { $0 }
        try require(used.count == 2 && used[0] == used[1] && used[0] >= 0, "\(used)")
        for _ in 0..<2 { file.release() }
      }
    }
  }

  @Test(
    "if it cannot be examined when it is opened again, no descriptor stays open, and it can be opened later",
    .enabled(if: disk_faults_are_possible() != 0))
  func unexamined() async {
    await #expect(processExitsWith: .success) {
      try OpenFileTests.withClosedFile { file, directory in
        disk_faults_begin(directory.path)
        disk_faults_fail(DISK_STATUS, 1, EIO)
        var code: Int32 = 0
        do throws(SystemError) { _ = try file.acquire() } catch { code = error.code }
        try require(code == EIO, "error \(code)")
        try require(!ForeignChangeTests.isOpen(directory.path + "/f"), "it stays closed")
        let descriptor = try file.acquire()
        try require(fcntl(descriptor, F_GETFD) >= 0, "it is open")
        file.release()
      }
    }
  }
}
