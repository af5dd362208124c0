import Glibc
import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

/// Each call of each kind fails once, like in SQLite's tests. See "How SQLite Is Tested", section 3.
@Suite("Each disk call fails once")
struct SpoolFaultTests {
  static let pattern = OffsetPattern(seed: 9)

  /// Creates a stretch, fills it for more than a lap, and meanwhile releases, commits and reads. After an error of the
  /// disk, it repeats the call as often as necessary.
  struct Run {
    let disk = TestDisk()
    var errors: [SpoolError] = []
    var durable: UInt64 = 0

    init() throws {
      try disk.makeFolder("/tmp", mode: 0)
      try disk.synchronizeFolder("/")
      disk.resetCalls()
    }

    /// - Returns: the file; nil if it or its folder could not be created in three attempts.
    mutating func run() throws -> SpoolFile? {
      let disk = disk
      let folder = try repeating { () throws(SpoolError) in
        try SpoolFolder(directory: "/tmp/spool", stream: "s", disk: disk)
      }
      guard let folder,
        let file = try repeating({ () throws(SpoolError) in
          try SpoolFile.create(in: folder, description: "text", capacity: 8 * 4064)
        })
      else { return nil }
      for step in 0..<12 {
        let bytes = SpoolFaultTests.pattern.bytes(3500, at: file.head)
        let head = file.head
        try repeating { () throws(SpoolError) in
          var failure: SpoolError?
          bytes.withUnsafeBytes { pointer in
            do throws(SpoolError) { try file.append(pointer, at: head, time: 0) } catch { failure = error }
          }
          if let failure { throw failure }
        }
        if file.head > 12_000 { file.release(upTo: file.head - 12_000) }
        let sync = step % 2 == 1
        let done = try repeating { () throws(SpoolError) -> Bool in
          try file.commit(state: "at \(file.head)", pausedByteCount: 0, pauses: [], isFinished: false, sync: sync)
          return true
        }
        if sync, done == true { durable = file.head }
      }
      return file
    }

    @discardableResult
    private mutating func repeating<Result>(_ body: () throws(SpoolError) -> Result) throws -> Result? {
      for _ in 0..<3 {
        do throws(SpoolError) { return try body() } catch { errors.append(error) }
      }
      return nil
    }
  }

  static let faults: [(TestDisk.Operation, [TestDisk.Fault])] = [
    (.open, [.error(EIO), .error(EMFILE), .error(EINTR)]),
    (.write, [.error(ENOSPC), .error(EIO), .error(EINTR), .short]),
    (.read, [.error(EIO), .error(EINTR), .short]),
    (.synchronizeData, [.error(ENOSPC), .error(EIO), .error(EINTR)]),
    (.synchronizeFolder, [.error(EIO), .error(EINTR)]),
    (.setSize, [.error(ENOSPC), .error(EFBIG), .error(EINTR)]),
    (.punchHole, [.error(EOPNOTSUPP), .error(ENOSPC), .error(EIO), .error(EINTR)]),
    (.rename, [.error(EIO), .error(EINTR)]), (.unlink, [.error(EIO), .error(EINTR)]),
    (.makeFolder, [.error(ENOSPC), .error(EINTR)]), (.lock, [.error(EIO), .error(EINTR)]),
    (.status, [.error(EIO), .error(EINTR)]), (.names, [.error(EIO), .error(EINTR)]),
  ]

  @Test("a temporary error loses nothing and is reported, for each call")
  func once() throws {
    var plain = try Run()
    let head = try #require(try plain.run()).head
    var count = 0
    for (operation, faults) in Self.faults {
      for fault in faults {
        for number in 1...max(1, plain.disk.calls[operation] ?? 0) {
          var run = try Run()
          run.disk.faults[operation] = [number: fault]
          let file = try #require(try run.run(), "\(operation) \(number): \(fault)")
          #expect(file.head == head, "\(operation) \(number): \(fault)")
          if fault == .short || fault == .error(EINTR) || operation == .punchHole {
            #expect(run.errors.isEmpty, "\(operation) \(number): \(fault): \(run.errors)")
          } else if case .error(let code) = fault {
            #expect(run.errors.allSatisfy { $0.code == code }, "\(operation) \(number): \(run.errors)")
          }
          // A failed fdatasync may lose pages, which must be reported.
          let lost = operation == .synchronizeData ? file.damage.map(\.lostPositions) : []
          try expectAll(file, but: lost, "\(operation) \(number): \(fault)")
          run.disk.cutPower()
          let folder = try SpoolFolder(directory: "/tmp/spool", stream: "s", disk: run.disk)
          let stretches = try folder.stretches()
          #expect(stretches == [file.path], "\(operation) \(number): \(fault)")
          let recovered = try SpoolFile.open(file.path, folder: folder)
          #expect(recovered.head == head)
          try expectAll(recovered, but: lost, "\(operation) \(number): \(fault), after a power cut")
          count += 1
        }
      }
    }
    #expect(count > 150)
  }

  @Test("one refusal of space changes no byte and is not an error", arguments: [ENOSPC, EIO, EFBIG, EINTR])
  func allocations(code: Int32) throws {
    func run(_ failing: Int?) throws -> TestDisk {
      let disk = TestDisk()
      try disk.makeFolder("/spool", mode: 0o700)
      if let failing { disk.faults[.allocate] = [failing: .error(code)] }
      let folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
      let file = try SpoolFile.create(in: folder, description: "", capacity: 400 * 4064)
      // More than a lap: what is allocated continues at the beginning of the ring.
      while file.head < 2 * file.capacity {
        try file.append(Self.pattern, at: file.head, count: 47 * SpoolFormat.payloadSize)
        file.evict(upTo: file.head - min(file.head, 300 * SpoolFormat.payload))
        try file.commit()
      }
      try expectAll(file, but: [], "\(String(describing: failing))")
      return disk
    }
    let count = try run(nil).calls[.allocate] ?? 0
    #expect(count > 4)
    for number in 1...count { _ = try run(number) }
  }

  @Test("a write that writes nothing and reports no error is an error, and can be repeated")
  func nothingWritten() throws {
    var plain = try Run()
    let head = try #require(try plain.run()).head
    for number in 1...(plain.disk.calls[.write] ?? 0) {
      var run = try Run()
      run.disk.faults[.write] = [number: .nothing]
      let file = try #require(try run.run(), "\(number)")
      // The first write stores the owner of the lock, which may be missing.
      #expect(file.head == head && run.errors.map(\.code) == (number == 1 ? [] : [EIO]), "\(number): \(run.errors)")
      try expectAll(file, but: [], "\(number)")
    }
  }

  @Test("a disk that stays broken causes an error, and recovery finds the durable bytes", arguments: [ENOSPC, EIO])
  func lasting(code: Int32) throws {
    var plain = try Run()
    _ = try plain.run()
    for operation: TestDisk.Operation in [.write, .synchronizeData, .synchronizeFolder, .rename, .setSize] {
      for number in 1...max(1, plain.disk.calls[operation] ?? 0) {
        var run = try Run()
        run.disk.lasting[operation] = (number, code)
        let file = try run.run()
        #expect(!run.errors.isEmpty || operation == .write && file != nil, "\(operation) \(number)")
        run.disk.cutPower()
        let folder = try SpoolFolder(directory: "/tmp/spool", stream: "s", disk: run.disk)
        for path in try folder.stretches() {
          let recovered = try SpoolFile.open(path, folder: folder)
          #expect(recovered.head >= run.durable, "\(operation) \(number)")
          try expectAll(recovered, but: [run.durable..<max(run.durable, recovered.head)], "\(operation) \(number)")
        }
        // A stretch that was never returned may be missing, but a returned one must exist.
        if file != nil { #expect(try folder.stretches().count == 1, "\(operation) \(number)") }
      }
    }
  }

  /// All bytes exist, except `lost`.
  private func expectAll(_ file: SpoolFile, but lost: [Range<UInt64>], _ comment: Comment) throws {
    let (bytes, missing) = try file.readAll(from: file.oldest)
    #expect(missing.allSatisfy { range in lost.contains { $0.clamped(to: range) == range } }, comment)
    for (position, piece) in bytes {
      #expect(piece.withUnsafeBytes { Self.pattern.matches($0, at: position) }, comment)
    }
  }
}
