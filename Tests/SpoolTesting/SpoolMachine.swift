// A machine whose processes keep a spool on one disk in memory. It can kill them, and lose power.

package import EventLoops
internal import Glibc
package import PropertyTesting
package import Spool

/// One process runs at a time. Remains of an earlier one, such as its threads, get a disk that refuses every call.
package final class SpoolMachine: Sendable {
  private struct State: Sendable {
    let disk: TestDisk
    /// Counts the processes.
    var running = 0
  }

  private let state: Lock<State>

  /// - Parameter folder: must exist, like its parents.
  package init(_ random: SplitMix64, folder: String) throws(SystemError) {
    let disk = TestDisk(random)
    var path = ""
    for name in folder.split(separator: "/") {
      path += "/\(name)"
      try disk.makeFolder(path, mode: 0o700)
      try disk.synchronizeFolder(SpoolFolder.folder(of: path))
    }
    state = Lock(State(disk: disk))
  }

  /// The disk for a process that begins now, or that is running.
  package func start() -> any SpoolDisk { DiskOfProcess(machine: self, number: state.withLock { $0.running }) }

  /// The process ends. The kernel still has everything that it has written.
  package func kill() {
    state.withLock { state in
      state.running += 1
      state.disk.killProcess()
    }
  }

  /// The power fails and returns.
  package func cutPower() {
    state.withLock { state in
      state.running += 1
      state.disk.cutPower()
    }
  }

  /// Fails each write with this error, except for this number of writes that come first. None fails if the error is
  /// nil.
  package func failWrites(with code: Int32?, after count: Int = 0) {
    state.withLock { state in
      let next = writeCount(state) + 1
      state.disk.lasting = code.map { [.write: (from: next + count, code: $0)] } ?? [:]
    }
  }

  /// From now on, each read fails with this error, and each write too if that is wanted, or none fails if it is nil.
  package func failReads(with code: Int32?, andWrites: Bool = false) {
    state.withLock { state in
      let failure = code.map { (from: 0, code: $0) }
      (state.disk.lasting[.read], state.disk.lasting[.write]) = (failure, andWrites ? failure : nil)
    }
  }

  /// Fails each attempt to open a file with this error, except for this number of attempts that come first. None fails
  /// if the error is nil.
  package func failOpens(with code: Int32?, after count: Int = 0) {
    state.withLock { state in
      let next = openCount(state) + 1
      state.disk.lasting[.open] = code.map { (from: next + count, code: $0) }
    }
  }

  /// How many times a file was to be opened, including failed attempts.
  package var openCount: Int { state.withLock { openCount($0) } }

  private func openCount(_ state: State) -> Int { state.disk.calls[.open] ?? 0 }

  /// From now on, no folder can be made for this reason, or each can be if it is nil.
  package func failFolders(with code: Int32?) {
    state.withLock { $0.disk.lasting[.makeFolder] = code.map { (from: 0, code: $0) } }
  }

  /// From now on, each sync of a folder fails with this error.
  package func failFolderSyncs(with code: Int32) {
    state.withLock { $0.disk.lasting[.synchronizeFolder] = (from: 0, code: code) }
  }

  /// How many reads there were, including failed ones.
  package var readCount: Int { state.withLock { $0.disk.calls[.read] ?? 0 } }

  /// How many writes there were, including failed ones.
  package var writeCount: Int { state.withLock { writeCount($0) } }

  private func writeCount(_ state: State) -> Int { state.disk.calls[.write] ?? 0 }

  /// Fails the next sync of bytes to the disk with this error, and none after it.
  package func failNextSync(with code: Int32) {
    state.withLock { state in
      let next = (state.disk.calls[.synchronizeData] ?? 0) + 1
      state.disk.faults[.synchronizeData] = [next: .error(code)]
    }
  }

  /// How many times a process has synced its bytes to the disk.
  package var syncCount: Int { state.withLock { $0.disk.calls[.synchronizeData] ?? 0 } }

  fileprivate func call<Result: Sendable>(
    _ process: Int, _ body: (TestDisk) throws(SystemError) -> Result
  ) throws(SystemError) -> Result {
    try state.withLock { state throws(SystemError) in
      guard state.running == process else { throw SystemError(operation: "use of a disk", code: EIO) }
      return try body(state.disk)
    }
  }
}

private struct DiskOfProcess: SpoolDisk {
  let machine: SpoolMachine
  let number: Int

  private func call<Result: Sendable>(
    _ body: (TestDisk) throws(SystemError) -> Result
  ) throws(SystemError) -> Result { try machine.call(number, body) }

  func open(_ path: String, flags: Int32, mode: UInt32) throws(SystemError) -> Int32 {
    try call { disk throws(SystemError) in try disk.open(path, flags: flags, mode: mode) }
  }

  func close(_ descriptor: Int32) {
    // The kernel has closed the descriptors of an ended process.
    try? call { $0.close(descriptor) }
  }

  func write(_ pieces: [UnsafeRawBufferPointer], to descriptor: Int32, at offset: UInt64) throws(SystemError) -> Int {
    try call { disk throws(SystemError) in try disk.write(pieces, to: descriptor, at: offset) }
  }

  func read(_ descriptor: Int32, into buffer: UnsafeMutableRawBufferPointer, at offset: UInt64) throws(SystemError)
    -> Int
  {
    try call { disk throws(SystemError) in try disk.read(descriptor, into: buffer, at: offset) }
  }

  func nextData(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64? {
    try call { disk throws(SystemError) in try disk.nextData(descriptor, from: offset) }
  }

  func nextHole(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64? {
    try call { disk throws(SystemError) in try disk.nextHole(descriptor, from: offset) }
  }

  func synchronizeData(_ descriptor: Int32) throws(SystemError) {
    try call { disk throws(SystemError) in try disk.synchronizeData(descriptor) }
  }

  func synchronizeFolder(_ path: String) throws(SystemError) {
    try call { disk throws(SystemError) in try disk.synchronizeFolder(path) }
  }

  func setSize(_ descriptor: Int32, to byteCount: UInt64) throws(SystemError) {
    try call { disk throws(SystemError) in try disk.setSize(descriptor, to: byteCount) }
  }

  func punchHole(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError) {
    try call { disk throws(SystemError) in try disk.punchHole(descriptor, at: offset, byteCount: byteCount) }
  }

  func allocate(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError) {
    try call { disk throws(SystemError) in try disk.allocate(descriptor, at: offset, byteCount: byteCount) }
  }

  func rename(_ old: String, to new: String) throws(SystemError) {
    try call { disk throws(SystemError) in try disk.rename(old, to: new) }
  }

  func unlink(_ path: String) throws(SystemError) {
    try call { disk throws(SystemError) in try disk.unlink(path) }
  }

  func makeFolder(_ path: String, mode: UInt32) throws(SystemError) {
    try call { disk throws(SystemError) in try disk.makeFolder(path, mode: mode) }
  }

  func lock(_ descriptor: Int32) throws(SystemError) -> Bool {
    try call { disk throws(SystemError) in try disk.lock(descriptor) }
  }

  func isLocked(_ descriptor: Int32) throws(SystemError) -> Bool {
    try call { disk throws(SystemError) in try disk.isLocked(descriptor) }
  }

  func status(_ descriptor: Int32) throws(SystemError) -> SpoolFileStatus {
    try call { disk throws(SystemError) in try disk.status(descriptor) }
  }

  func names(in folder: String) throws(SystemError) -> [String] {
    try call { disk throws(SystemError) in try disk.names(in: folder) }
  }
}
