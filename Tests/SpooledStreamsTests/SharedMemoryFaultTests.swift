// Makes each call on the files in memory fail once. These are the files of the circular buffer, and of a stretch that
// has no file on the disk yet.

import EventLoops
import ExitTesting
import Glibc
import NetworkTesting
import PropertyTesting
import SpoolTesting
import SpooledStreams
import StreamBuffers
import SyncGate
import Testing

@Suite(
  "Each call on the files in memory of a spooled stream fails in turn",
  .enabled(if: disk_faults_are_possible() != 0))
struct SharedMemoryFaultTests {
  private static let faults: [(call: disk_call, errors: [Int32])] = [
    (DISK_OPEN, [EIO, ENOSPC, EMFILE, EINTR]), (DISK_ALLOCATE, [ENOSPC, EIO, EFBIG, EINTR]),
    (DISK_MAP, [ENOMEM, EAGAIN]), (DISK_STATUS, [EIO, EINTR]), (DISK_READ, [EIO, EINTR]),
    (DISK_WRITE, [ENOSPC, EIO, Int32(DISK_SHORT), EINTR]),
  ]

  /// Gives the process a folder of its own, if it may mount one. Otherwise a spool also looks at the files of other
  /// tests, and the time grows with the square of their number.
  private static func leaveOthers() {
    if own_mounts_begin() == 0 { mount("none", "/dev/shm", "tmpfs", 0, nil) }
  }

  @Test("every byte is there, at least for the next process that can read the files", arguments: faults.indices)
  func turn(index: Int) async {
    // A process of its own: others have files in the same folder.
    await #expect(processExitsWith: .success) { [index = index as Int] in
      reportingErrors {
        SharedMemoryFaultTests.leaveOthers()
        let (call, errors) = SharedMemoryFaultTests.faults[index]
        for hasDisk in [true, false] {
          let count = try SharedMemoryFaultTests.run(hasDisk: hasDisk, nil)
          for error in errors {
            for number in 1...count[Int(call.rawValue)] + 1 {
              _ = try SharedMemoryFaultTests.run(hasDisk: hasDisk, (call, number, error))
            }
          }
        }
      }
    }
  }

  @Test("bytes in memory are sent with those of the file, even if the memory cannot be opened at first")
  func later() async {
    await #expect(processExitsWith: .success) {
      reportingErrors {
        SharedMemoryFaultTests.leaveOthers()
        for code in [EMFILE, ENFILE, ENOMEM, EIO] { try SharedMemoryFaultTests.readLater(code) }
      }
    }
  }

  private static func readLater(_ code: Int32) throws {
    let rig = try SpoolOnMachine(Seed(2))
    let total: UInt64 = 10_000
    try {
      let spool = try rig.open(syncInterval: .seconds(3600))
      let buffer = try spool.begin(description: "text", capacity: 64 << 10, overflow: .refuse)
      var ends = try buffer.ends()
      ends.producer.capture(Int(total))
      rig.machine.kill()
      // Only now, so that the disk does not get the bytes because the source has ended.
      ends.producer.finish()
    }()
    let stretches = try rig.stretches()
    let id = (stretches.first ?? "").split(separator: "-").last?.prefix { $0 != "." } ?? ""
    disk_faults_begin("/dev/shm/sluice-\(id)")
    disk_faults_fail(DISK_OPEN, 1, code)
    let spool = try rig.open()
    guard let backlog = try spool.opened(spool.backlog.first), backlog.kept.upperBound == total else {
      throw SpooledStretchTests.Failure(reason: "\(code): not all is left")
    }
    guard !String(cString: disk_faults_place()).isEmpty else {
      throw SpooledStretchTests.Failure(reason: "\(code): nothing failed")
    }
    try backlog.readAll(0..<total, context: "\(code)")
    _ = try spool.finish(backlog.stretch, isDelivered: true)
    guard try SpoolDirectory.inMemory(spool.backlog).isEmpty else {
      throw SpooledStretchTests.Failure(reason: "\(code): the memory is still in use")
    }
    disk_faults_begin("")
  }

  /// A process captures and is killed, another looks at what it left while the call may fail, and a third one reads it.
  ///
  /// - Parameter hasDisk: false if the first process's disk is full, so that the bytes are only in memory.
  /// - Returns: how many calls of each kind there were.
  private static func run(
    hasDisk: Bool, _ fault: (call: disk_call, number: UInt, error: Int32)?
  ) throws -> [UInt] {
    let context = "\(String(describing: fault)), \(hasDisk ? "with" : "without") a disk"
    let rig = try SpoolOnMachine(Seed(1))
    let total: UInt64 = 10_000
    disk_faults_begin("/dev/shm/sluice-")
    if let fault { disk_faults_fail(fault.call, fault.number, fault.error) }
    if !hasDisk { rig.machine.failWrites(with: ENOSPC) }
    try {
      let spool = try rig.open()
      let buffer = try spool.begin(description: "text", capacity: 64 << 10, overflow: .refuse)
      var ends = try buffer.ends()
      ends.producer.capture(Int(total))
      guard hasDisk else { return }
      try SpoolDirectory.wait(for: "the disk: \(context)") { buffer.stretch.notSynchronized(upTo: total) == 0 }
    }()
    let isReported = rig.events.all.contains { event in
      if case .withoutSharedMemory(let error) = event { error.code == fault?.error } else { false }
    }
    rig.machine.kill()
    // An interrupted call is made again. Otherwise the bytes were only in the process, and it has reported this.
    if !hasDisk, isReported, fault?.error != EINTR { return [] }
    rig.machine.failWrites(with: nil)
    try {
      let spool = try rig.open()
      let before = rig.events.all.count
      let isOpen = try spool.backlog.contains { try spool.opened($0) != nil }
      guard isOpen || rig.events.all.count > before || !hasDisk else {
        throw SpooledStretchTests.Failure(reason: "nothing is open, and nothing is reported: \(context)")
      }
    }()
    rig.machine.kill()
    let counts = (0..<DISK_CALLS.rawValue).map { disk_faults_calls(disk_call(rawValue: $0)) }
    disk_faults_fail(DISK_OPEN, 0, 0)
    let spool = try rig.open()
    guard let backlog = try spool.opened(spool.backlog.first) else {
      throw SpooledStretchTests.Failure(reason: "nothing is left: \(context): \(rig.events.all)")
    }
    try backlog.readAll(0..<total, context: context)
    _ = try spool.finish(backlog.stretch, isDelivered: true)
    disk_faults_begin("")
    return counts.map(UInt.init)
  }
}
