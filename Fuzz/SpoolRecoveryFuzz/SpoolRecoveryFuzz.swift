// libFuzzer on what reads a spool file (see ../run.sh): recovery, reads, verification.
//
// An input changes an intact file. Its first octet determines whether the checksums are made right afterwards, because
// no input would get behind them otherwise. Then come changes: two octets of place, one of length, and the octets to
// put there. Checked besides traps: positions are in order, a read always goes forward, and reads and verification
// agree.

internal import Glibc

@_cdecl("LLVMFuzzerTestOneInput")
public func fuzzSpoolRecovery(_ data: UnsafePointer<UInt8>?, _ size: Int) -> CInt {
  var input = UnsafeBufferPointer(start: data, count: size)[...]
  var bytes = MemoryDisk.intact
  let signs = input.popFirst().map { $0 & 1 == 0 } ?? false
  while input.count >= 4 {
    let place = (Int(input.removeFirst()) << 8 | Int(input.removeFirst())) * 2
    let length = Int(input.removeFirst() % 64)
    for (index, octet) in input.prefix(length).enumerated() {
      let offset = (place + index) % bytes.count
      bytes[offset] = octet
    }
    input = input.dropFirst(length)
  }
  if signs { MemoryDisk.sign(&bytes) }
  let disk = MemoryDisk(bytes: bytes)
  guard let file = try? SpoolFile.open("/f", access: .readOnly, disk: disk) else { return 0 }
  precondition(file.released <= file.oldest && file.oldest <= file.head)
  guard let verification = try? file.verify() else { preconditionFailure("this disk does not fail") }
  var (position, count) = (file.oldest, UInt64(0))
  var buffer = [UInt8](repeating: 0, count: 9000)
  loop: while true {
    switch try? buffer.withUnsafeMutableBytes({ try file.read(at: position, into: $0) }) {
    case .bytes(let read):
      precondition(read > 0)
      position += UInt64(read)
      count += UInt64(read)
    case .missing(let next):
      precondition(next > position)
      position = next
    case .end: break loop
    case .unreadable, nil: preconditionFailure("this disk does not fail")
    }
  }
  precondition(position == file.head && count == verification.intactByteCount)
  return 0
}

/// One file in memory, for reading.
private struct MemoryDisk: SpoolDisk {
  let bytes: [UInt8]
  private static let header = SpoolHeader(id: Array(0..<16), created: 1, blockCount: 6, description: "d")

  /// Nine blocks in a ring of six, a tail, and two checkpoints.
  static let intact: [UInt8] = {
    var file = [UInt8](repeating: 0, count: Int(SpoolFormat.dataStart) + 6 * SpoolFormat.blockSize)
    func put(_ bytes: [UInt8], _ offset: UInt64) {
      file.replaceSubrange(Int(offset)..<Int(offset) + bytes.count, with: bytes)
    }
    put(header.encoded(), SpoolFormat.headerOffset)
    put(header.encoded(), SpoolFormat.headerCopyOffset)
    for index: UInt64 in 3..<9 {
      let shape = BlockShape(length: 4064, time: 7)
      let block = SpoolTail(index: index, shape: shape, bytes: [UInt8](repeating: UInt8(index), count: 4064))
      put(block.encoded(seed: header.seed), SpoolFormat.blockOffset(index, blockCount: 6))
    }
    for (slot, head) in [(0, UInt64(8 * 4064 + 50)), (1, 9 * 4064 + 100)] {
      var stored = StoredCheckpoint(sequence: UInt64(slot + 1), checkpoint: SpoolCheckpoint())
      (stored.checkpoint.head, stored.checkpoint.oldest) = (head, 4 * 4064)
      stored.tail = BlockShape(length: UInt16(head % 4064))
      stored.tailBytes = [UInt8](repeating: 9, count: Int(head % 4064))
      put(stored.encoded(seed: header.seed), SpoolFormat.checkpointOffsets[slot])
    }
    return file
  }()

  /// Makes all checksums right, as far as the lengths in the file are possible.
  static func sign(_ file: inout [UInt8]) {
    file.withUnsafeMutableBytes { file in
      let view = UnsafeRawBufferPointer(file)
      for start in [0, Int(SpoolFormat.headerCopyOffset)] {
        let length = min(Int(view.integer(at: start + 64, as: UInt32.self)), SpoolFormat.longestDescription)
        let sum = checksum(
          UnsafeRawBufferPointer(rebasing: view[start + 16..<start + 72 + length]),
          from: checksum(UnsafeRawBufferPointer(rebasing: view[start..<start + 12])))
        file.set(sum, at: start + 12)
      }
      let seed = checksum(UnsafeRawBufferPointer(rebasing: view[48..<64]))
      for start in SpoolFormat.checkpointOffsets.map({ Int($0) }) {
        let length = max(12, min(Int(view.integer(at: start + 12, as: UInt32.self)), SpoolFormat.regionSize))
        file.set(
          checksum(UnsafeRawBufferPointer(rebasing: view[start + 12..<start + length]), from: seed), at: start + 8)
      }
      for start in stride(from: Int(SpoolFormat.dataStart), to: file.count, by: SpoolFormat.blockSize) {
        let block = UnsafeRawBufferPointer(rebasing: view[start + 4..<start + SpoolFormat.blockSize])
        file.set(checksum(block, from: seed), at: start)
      }
    }
  }

  func open(_ path: String, flags: Int32, mode: UInt32) throws(SystemError) -> Int32 { 9 }
  func close(_ descriptor: Int32) {}

  func read(
    _ descriptor: Int32, into buffer: UnsafeMutableRawBufferPointer, at offset: UInt64
  ) throws(SystemError) -> Int {
    guard offset < UInt64(bytes.count) else { return 0 }
    let count = min(buffer.count, bytes.count - Int(offset))
    buffer.copyBytes(from: bytes[Int(offset)..<Int(offset) + count])
    return count
  }

  func nextData(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64? {
    offset < UInt64(bytes.count) ? offset : nil
  }

  func nextHole(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64? {
    offset < UInt64(bytes.count) ? UInt64(bytes.count) : nil
  }

  func status(_ descriptor: Int32) throws(SystemError) -> SpoolFileStatus {
    SpoolFileStatus(byteCount: UInt64(bytes.count), diskByteCount: UInt64(bytes.count))
  }

  // A file that is only read needs no other call.
  private var refusal: SystemError { SystemError(operation: "read only", code: EROFS) }
  func write(_ pieces: [UnsafeRawBufferPointer], to descriptor: Int32, at offset: UInt64) throws(SystemError) -> Int {
    throw refusal
  }
  func synchronizeData(_ descriptor: Int32) throws(SystemError) { throw refusal }
  func synchronizeFolder(_ path: String) throws(SystemError) { throw refusal }
  func setSize(_ descriptor: Int32, to byteCount: UInt64) throws(SystemError) { throw refusal }
  func punchHole(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError) { throw refusal }
  func allocate(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError) { throw refusal }
  func rename(_ old: String, to new: String) throws(SystemError) { throw refusal }
  func unlink(_ path: String) throws(SystemError) { throw refusal }
  func makeFolder(_ path: String, mode: UInt32) throws(SystemError) { throw refusal }
  func lock(_ descriptor: Int32) throws(SystemError) -> Bool { throw refusal }
  func isLocked(_ descriptor: Int32) throws(SystemError) -> Bool { throw refusal }
  func names(in folder: String) throws(SystemError) -> [String] { throw refusal }
  func freeByteCount(at path: String) throws(SystemError) -> UInt64 { throw refusal }
}
