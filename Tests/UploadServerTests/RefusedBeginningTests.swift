// Tests what is left if the disk refuses the beginning of a next part, the record of a gap, or a final name.

import EventLoops
import Glibc
import NetworkTesting
import SyncGate
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore

@Suite("Beginnings that the disk refuses", .serialized)
struct RefusedBeginningTests {
  private static let head = StreamedHead.all[0]
  private static let name = StreamName(path: "/k.wav", streamID: "a", mediaType: "audio/wav")

  private static func store(_ directory: TemporaryDirectory, _ durability: Durability) throws -> FileStore {
    try FileStore(in: directory, durability: durability)
  }

  @Test(
    "a next part that cannot begin leaves the directory as it was, whichever call the disk refuses",
    .enabled(if: disk_faults_are_possible() != 0))
  func nextPart() async {
    await #expect(processExitsWith: .success) {
      for call in [DISK_OPEN, DISK_WRITE, DISK_READ] {
        var number: UInt = 1
        while try RefusedBeginningTests.begins(failing: call, number) { number += 1 }
        try require(number > 1, "there is no call of kind \(call.rawValue)")
      }
    }
  }

  /// Continues a closed stream after some missing bytes, in the middle of a frame. One call fails.
  ///
  /// - Returns: whether there was such a call.
  private static func begins(failing call: disk_call, _ number: UInt) throws -> Bool {
    let directory = TemporaryDirectory()
    let store = try store(directory, .none)
    let bytes = head.bytes + [UInt8](repeating: 7, count: 10 * head.frameLength)
    let end = UInt64(bytes.count)
    var previous = RecordingPart(file: name.final)
    (previous.end, previous.count, previous.head) = (end, end, head.bytes)
    try directory.write(name.final, bytes)
    try store.parts.append(previous, to: name.base)
    let (names, log) = (directory.names, try directory.text(".parts/k-a"))
    disk_faults_begin(directory.path)
    disk_faults_fail(call, number, EIO)
    var refusal: (any Error)?
    do { _ = try store.beginPart(name, after: previous, at: end + 6) } catch { refusal = error }
    let place = String(cString: disk_faults_place())
    disk_faults_begin("")
    guard let refusal else {
      try require(directory.exists("k-a~2.part") && directory.exists("k-a~2.gaps"), "it has not begun")
      return !place.isEmpty
    }
    let context = "call \(number) of kind \(call.rawValue) fails at \(place): \(refusal)"
    try require(!place.isEmpty, context)
    try require(directory.names == names, "\(directory.names): \(context)")
    let left = try directory.text(".parts/k-a")
    try require(left == log, "\(left): \(context)")
    return true
  }

  @Test("the record of a gap that the disk does not sync is removed again, and those before it stay")
  func unsyncedGap() async {
    await #expect(processExitsWith: .success) {
      let (directory, name) = (TemporaryDirectory(), RefusedBeginningTests.name)
      let store = try RefusedBeginningTests.store(directory, .interval)
      let first = GapRecord(offset: 5, length: 1, cause: .notReceived)
      try store.note(first, name)
      sync_gate_fail(EIO)
      var isRefused = false
      do { try store.note(GapRecord(offset: 9, length: 1, cause: .notReceived), name) } catch { isRefused = true }
      sync_gate_fail(0)
      let text = try directory.text(name.gaps)
      try require(isRefused && text == first.jsonLine, text)
    }
  }

  @Test("on a file system without a rename that spares existing files, none is replaced either")
  func plainRename() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let store = try RefusedBeginningTests.store(directory, .none)
      try directory.write("growing", [1])
      try directory.write("taken", [2])
      rename_gate_fail(EINVAL)
      var code: Int32 = 0
      do throws(SystemError) {
        try store.moveUnlessThere("growing", in: store.directory, to: "taken")
      } catch {
        code = error.code
      }
      try require(code == EEXIST, "error \(code)")
      try require(try directory.contents("taken") == [2], "it is replaced")
      try store.moveUnlessThere("growing", in: store.directory, to: "free")
      rename_gate_fail(0)
      try require(directory.names == ["free", "taken"], "\(directory.names)")
      try require(try directory.contents("free") == [1], "it has another content")
    }
  }
}
