// Tests files that wait for the disk together: each is synced before anybody learns of it, and a refusal names one
// file.

import DiskFiles
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import SyncGate
import Testing

@Suite("Files that are synced together", .serialized, .enabled(if: disk_faults_are_possible() != 0))
struct DiskSyncTests {
  /// Files with unsynced bytes, and a worker that begins once all of them wait.
  private final class Bench: @unchecked Sendable {
    let directory: TemporaryDirectory
    let descriptor: Int32
    let worker = BackgroundWorker()
    let sync: DiskSync
    private let mayBegin: EventCounter
    /// For each file the error, and how many of its bytes were unsynced when its turn ended.
    let results = Lock<[Int: (error: SystemError?, unsynced: UInt)]>([:])

    init(in directory: TemporaryDirectory = TemporaryDirectory(), marks: Bool = false) throws {
      self.directory = directory
      mayBegin = try EventCounter()
      descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
      sync = DiskSync(directory: descriptor, worker: worker, files: OpenFiles(), marking: marks ? .all : .none)
      disk_faults_begin(directory.path)
      worker.execute { [self] in _ = waitUntilReadable(mayBegin.descriptor) }
    }

    // The worker's thread may release the last reference when the next bench has begun to count and to fail calls.
    deinit { close(descriptor) }

    func path(_ number: Int) -> String { "\(directory.path)/\(number)" }

    func write(_ number: Int, in parent: Int32? = nil) throws {
      let file = openat(parent ?? descriptor, "\(number)", O_WRONLY | O_CREAT, 0o600)
      defer { close(file) }
      guard pwrite(file, "abc", 3, 0) == 3 else { throw TestFailure("write") }
    }

    /// Makes the disk sync a file, and then the files of each step.
    ///
    /// - Parameters:
    ///   - folder: where the file is; nil for the directory of the recordings.
    ///   - path: the path of a file in a folder.
    ///   - isNamed: whether the name of the file is known.
    func take(
      _ number: Int, _ steps: [DiskSync.Step] = [], in parent: Int32? = nil, of folder: Int32? = nil,
      at path: String? = nil, isNamed: Bool = true, growth: DiskSync.Growth = .ended
    ) {
      let path = path ?? self.path(number)
      let file = isNamed ? DiskSync.File.named("\(number)", in: folder ?? descriptor) : .unknown
      sync.sync(file, "sync \(number)", steps, in: parent, growth: growth) { [self] error in
        let unsynced = disk_faults_unsynced(path)
        results.withLock { $0[number] = (error, unsynced) }
      }
    }

    /// The worker waits for ``begin(awaiting:)`` again.
    func pause() {
      _ = mayBegin.drain()
      worker.execute { [self] in _ = waitUntilReadable(mayBegin.descriptor) }
    }

    func begin(awaiting count: Int) throws {
      mayBegin.signal()
      try waitUntil("all are told") { results.withLock { $0.count == count } }
    }
  }

  @Test("each file is on the disk before its sender is informed, however many wait")
  func all() async {
    await #expect(processExitsWith: .success) {
      for count in [1, 2, 15, 16, 40] {
        let bench = try Bench()
        for number in 0..<count { try bench.write(number) }
        try require(disk_faults_unsynced(bench.path(0)) == 3, "the layer sees what is not synced")
        for number in 0..<count { bench.take(number) }
        try bench.begin(awaiting: count)
        let results = bench.results.withLock { $0 }
        for (number, result) in results {
          try require(result.error == nil && result.unsynced == 0, "\(number) of \(count): \(result)")
        }
      }
    }
  }

  @Test("the file that the disk refuses has the error, and no other", arguments: [EIO, ENOSPC])
  func refused(code: Int32) async {
    await #expect(processExitsWith: .success) { [code = code as Int32] in
      for refused in 0..<5 {
        let bench = try Bench()
        for number in 0..<5 { try bench.write(number) }
        disk_faults_fail(DISK_SYNC, UInt(refused + 1), code)
        for number in 0..<5 { bench.take(number) }
        try bench.begin(awaiting: 5)
        for (number, result) in bench.results.withLock({ $0 }) {
          let isRefused = number == refused
          try require(result.error?.code == (isRefused ? code : nil), "\(number), refused \(refused): \(result)")
          try require(result.unsynced == (isRefused ? 3 : 0), "\(number), refused \(refused): \(result)")
        }
      }
    }
  }

  @Test("after the disk has refused a sync of everything, each file is asked for its own errors")
  func refusedTogether() async {
    await #expect(processExitsWith: .success) {
      let bench = try Bench()
      for number in 0..<40 { try bench.write(number) }
      // The error may be about another file than these, and the disk reports it once.
      disk_faults_fail(DISK_SYNC, 1, EIO)
      for number in 0..<20 { bench.take(number) }
      try bench.begin(awaiting: 20)
      try require(bench.results.withLock { $0 }.values.allSatisfy { $0.error == nil }, "none of these is refused")
      bench.pause()
      let before = disk_faults_calls(DISK_SYNC)
      for number in 20..<40 { bench.take(number) }
      try bench.begin(awaiting: 40)
      let count = disk_faults_calls(DISK_SYNC) - before
      try require(count >= 20, "\(count) syncs for 20 files")
    }
  }

  @Test("each file that a step touches is on the disk before the next step, and none follows a refusal")
  func steps() async {
    await #expect(processExitsWith: .success) {
      // The syncs: the file, two files of the first step and their directory, and one file of the second step.
      for refused in 0...5 {
        let bench = try Bench()
        let seen = Lock<[UInt]>([])
        let (descriptor, paths) = (bench.descriptor, (0..<4).map { bench.path($0) })
        for number in 0..<4 { try bench.write(number) }
        if refused > 0 { disk_faults_fail(DISK_SYNC, UInt(refused), EIO) }
        let first: DiskSync.Step = { () throws(SystemError) in
          seen.withLock { $0.append(disk_faults_unsynced(paths[0])) }
          return DiskSync.Touched(
            files: [.named("1", in: descriptor), .named("2", in: descriptor)], directory: descriptor)
        }
        let second: DiskSync.Step = { () throws(SystemError) in
          seen.withLock { $0.append(disk_faults_unsynced(paths[1]) + disk_faults_unsynced(paths[2])) }
          return DiskSync.Touched(files: [.named("3", in: descriptor)])
        }
        bench.take(0, [first, second])
        try bench.begin(awaiting: 1)
        let error = bench.results.withLock { $0[0]?.error }
        let unsynced = seen.withLock { $0 }
        try require(unsynced.allSatisfy { $0 == 0 }, "refused \(refused): \(unsynced)")
        try require((error?.code == EIO) == (refused > 0), "refused \(refused): \(String(describing: error))")
        let stepCount = refused == 0 ? 2 : [0, 1, 1, 1, 2][refused - 1]
        try require(unsynced.count == stepCount, "refused \(refused): \(unsynced.count) steps")
      }
    }
  }

  @Test("a directory that the disk refuses is synced once for all waiting files, and all of them get the error")
  func directory() async {
    await #expect(processExitsWith: .success) {
      let bench = try Bench()
      for number in 0..<3 { try bench.write(number) }
      // The files succeed, and then the directory fails.
      disk_faults_fail(DISK_SYNC, 4, EIO)
      for number in 0..<3 { bench.take(number, in: number == 2 ? nil : bench.descriptor) }
      try bench.begin(awaiting: 3)
      let codes = bench.results.withLock { results in (0..<3).map { results[$0]?.error?.code } }
      try require(codes == [EIO, EIO, nil], "\(codes)")
    }
  }

  @Test("a file whose name is unknown is on the disk with all others, in the same sync")
  func unknownName() async {
    await #expect(processExitsWith: .success) {
      let bench = try Bench()
      for number in 0..<20 { try bench.write(number) }
      for number in 0..<20 { bench.take(number, isNamed: number != 7) }
      try bench.begin(awaiting: 20)
      let count = disk_faults_calls(DISK_SYNC)
      try require(count == 1, "\(count) syncs")
      for (number, result) in bench.results.withLock({ $0 }) {
        try require(result.error == nil && result.unsynced == 0, "\(number): \(result)")
      }
    }
  }

  @Test("a growing file whose name is unknown does not count as synced, because its mark would be wrong")
  func unknownGrowingName() async {
    await #expect(processExitsWith: .success) {
      for growth in [DiskSync.Growth.ended, .continues] {
        let bench = try Bench(marks: true)
        try bench.write(0)
        bench.take(0, isNamed: false, growth: growth)
        try bench.begin(awaiting: 1)
        let code = bench.results.withLock { $0[0]?.error?.code }
        try require(code == (growth == .ended ? nil : EIO), "\(growth): \(String(describing: code))")
      }
    }
  }

  @Test("a growing file that cannot be opened for a sync is told from one whose bytes the disk may have dropped")
  func shortage() async {
    await #expect(processExitsWith: .success) {
      for (call, expected) in [(DISK_OPEN, ENOMEM), (DISK_STATUS, EIO)] {
        let bench = try Bench(marks: true)
        try bench.write(0)
        // The first open only begins the writing.
        disk_faults_fail(call, call == DISK_OPEN ? 2 : 1, ENOMEM)
        bench.take(0, growth: .continues)
        try bench.begin(awaiting: 1)
        let code = bench.results.withLock { $0[0]?.error?.code }
        try require(code == expected, "kind \(call.rawValue): \(String(describing: code))")
        bench.pause()
        bench.results.withLock { $0 = [:] }
        bench.take(0, growth: .continues)
        try bench.begin(awaiting: 1)
        let result = bench.results.withLock { $0[0] }
        try require(
          result?.error == nil && result?.unsynced == 0, "kind \(call.rawValue): \(String(describing: result))")
      }
    }
  }

  /// How files on another file system are synced, or, in the last case, the names there.
  private enum Sync: CaseIterable { case together, notOpened, refused, names }

  @Test(
    "files on another file system than the recordings are on the disk before their senders are informed",
    .enabled(if: SmallDisk.isPossible, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func otherFileSystem() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let path = directory.path + "/.uploads"
      try require(mkdir(path, 0o700) == 0, "mkdir")
      let disk = try SmallDisk(at: path)
      for sync in Sync.allCases {
        let bench = try Bench(in: directory)
        let other = open(path, O_RDONLY | O_DIRECTORY)
        defer { close(other) }
        let count = sync == .together || sync == .names ? 20 : 1
        for number in 0..<count { try bench.write(number, in: sync == .names ? nil : other) }
        switch sync {
        case .together: break
        case .notOpened: open_gate_fail(EMFILE, ".uploads/0")
        case .refused:
          // The first call that this counts is the one after the shortage.
          sync_gate_fail(ENOMEM)
          disk_faults_fail(DISK_SYNC, 1, EIO)
        case .names: disk_faults_fail(DISK_SYNC, 21, EIO)
        }
        for number in 0..<count {
          if sync == .names {
            bench.take(number, in: other)
          } else {
            bench.take(number, of: other, at: "\(path)/\(number)")
          }
        }
        try bench.begin(awaiting: count)
        sync_gate_fail(0)
        open_gate_fail(0, "")
        let isRefused = sync == .refused || sync == .names
        for (number, result) in bench.results.withLock({ $0 }) where !isRefused {
          try require(result.error == nil && result.unsynced == 0, "\(sync), \(number): \(result)")
        }
        if sync == .refused {
          let place = String(cString: disk_faults_place())
          try require(place == "\(path)/0", "after a shortage, the disk of \(place) is synced")
        }
        if sync == .names {
          let place = String(cString: disk_faults_place())
          try require(place == path, "after 20 files, the directory of their names is synced, and not \(place)")
        }
      }
      withExtendedLifetime(disk) {}
    }
  }
}
