// Tests when the descriptor of a file that several users share is open.

import Glibc
import NetworkTesting
import PropertyTesting
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
}
