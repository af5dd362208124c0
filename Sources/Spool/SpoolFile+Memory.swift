// A record of whether bytes of a stretch may be only in the memory of the process that captures it. It survives that
// process, so the next one knows that bytes are lost if the memory is gone.

internal import EventLoops

/// The record. It is written without a sync, because only a process of the same boot needs it: a restart of the machine
/// clears the memory in any case.
struct MemoryRecord: Equatable {
  /// The boot during which bytes may be only in memory; 0 if all captured bytes are in the file or acknowledged.
  var boot: UInt32

  static let size = 8
  /// The end of the header's region, which no description reaches.
  static let offset = SpoolFormat.headerOffset + UInt64(SpoolFormat.regionSize - size)

  init(boot: UInt32) { self.boot = boot }

  /// Nil if the bytes are no record of the file with this seed, as in a file of an earlier version.
  ///
  /// - Parameter bytes: ``size`` bytes.
  init?(_ bytes: [UInt8], seed: UInt32) {
    guard bytes.count == Self.size else { return nil }
    let boot = bytes.withUnsafeBytes { $0.integer(at: 0, as: UInt32.self) }
    self.init(boot: boot)
    guard encoded(seed: seed) == bytes else { return nil }
  }

  func encoded(seed: UInt32) -> [UInt8] {
    var bytes: [UInt8] = []
    bytes.append(number: boot)
    bytes.append(number: checksum(bytes, from: seed))
    return bytes
  }

  /// A number for the current boot of the machine, never 0. Without an identifier, no restart is noticed, and the
  /// report errs on the side of a loss.
  static let currentBoot = BootIdentifier.kernel.map { max(1, checksum(Array($0.utf8))) } ?? 1
}

extension SpoolFile {
  /// Records whether bytes may be only in the memory of the process that captures them. Survives SIGKILL.
  ///
  /// - Throws: ``SpoolError``. The former record stays, and this can be called again.
  package func noteMemory(isNeeded: Bool) throws(SpoolError) {
    let new = MemoryRecord(boot: isNeeded ? MemoryRecord.currentBoot : 0)
    guard memoryRecord != new else { return }
    guard !isReadOnly else { throw SpoolError(.readOnly, path: path) }
    try descriptor.write(new.encoded(seed: seed), at: MemoryRecord.offset)
    memoryRecord = new
  }

  /// Whether bytes may be only in memory, or were before the process ended, since the machine started.
  package var needsMemory: Bool { memoryRecord?.boot == MemoryRecord.currentBoot && !checkpoint.isFinished }

  /// Whether it is known that all captured bytes are in the file or acknowledged.
  package var needsNoMemory: Bool { memoryRecord?.boot == 0 || checkpoint.isFinished }

  /// Whether the memory that had later bytes than the file is gone.
  package var hasLostMemory: Bool { damage.contains { $0.kind == .lostMemory } }
}
