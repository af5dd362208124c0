// The bytes of a load test's streams. Each byte can be computed from its offset, so none is stored.

internal import EventLoops
internal import Glibc

/// The bytes of all streams of a run: a repeated block, with a different shift for each stream in some kinds. All loops
/// read it.
final class BodyBytes: Sendable {
  /// Unchecked only because of the pointer, which is written in `init` and only read afterwards.
  private nonisolated(unsafe) let block: UnsafeRawBufferPointer
  /// The number of bytes after which the stream repeats. The block is longer by one window, so that a read need not
  /// wrap.
  private let period: UInt64
  private let differsByStream: Bool

  /// The maximum size of one read.
  static let window = 64 << 10
  /// The maximum length of a file, in bytes.
  static let fileLimit = 1 << 30

  /// - Throws: ``LoadError`` if the file is unreadable, empty or too long.
  init(_ body: LoadProfile.Body, seed: UInt64) throws(LoadError) {
    switch body {
    case .zeros:
      (block, period, differsByStream) = (Self.make(1) { _ in 0 }, 1, false)
    case .random:
      var generator = SeededGenerator(seed: seed)
      var word: UInt64 = 0
      let made = Self.make(1 << 20) { index in
        if index % 8 == 0 { word = generator.next() }
        return UInt8(truncatingIfNeeded: word >> UInt64(8 * (index % 8)))
      }
      (block, period, differsByStream) = (made, 1 << 20, true)
    case .pattern:
      (block, period, differsByStream) = (
        Self.make(Int(Self.patternPeriod), Self.patternByte), Self.patternPeriod, true
      )
    case .file(let path):
      let bytes = try Self.contents(of: path)
      (block, period, differsByStream) = (Self.make(bytes.count) { bytes[$0] }, UInt64(bytes.count), false)
    }
  }

  deinit { block.deallocate() }

  /// 65,537 is prime. So a loss or repetition of a power of two, as buffers cause it, is detectable.
  private static let patternPeriod: UInt64 = 65_537

  /// The byte of the verifying pattern at `offset` of stream `index`. Any seven consecutive bytes occur once in a
  /// period.
  static func patternByte(_ index: Int) -> UInt8 {
    let position = UInt32(index % Int(patternPeriod))
    // Powers of a primitive root of the prime run through all its residues.
    var (base, exponent, power): (UInt64, UInt32, UInt64) = (3, position, 1)
    while exponent > 0 {
      if exponent & 1 == 1 { power = power * base % patternPeriod }
      base = base * base % patternPeriod
      exponent >>= 1
    }
    return UInt8(truncatingIfNeeded: power ^ power >> 8)
  }

  /// Passes up to `maximum` bytes of stream `index` from `offset` on to `body`.
  func read(stream index: Int, at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> Int {
    let shift = differsByStream ? UInt64(index) &* 7919 : 0
    let start = Int((offset &+ shift) % period)
    let count = min(maximum, block.count - start)
    return body(RawSpan(_unsafeBytes: UnsafeRawBufferPointer(rebasing: block[start..<start + count])))
  }

  /// `count` bytes of stream `index` from `offset` on.
  func bytes(stream index: Int, at offset: UInt64, count: Int) -> [UInt8] {
    [UInt8](unsafeUninitializedCapacity: count) { buffer, filled in
      while filled < count {
        filled += read(stream: index, at: offset + UInt64(filled), maximum: min(count - filled, Self.window)) { span in
          span.withUnsafeBytes { bytes in
            UnsafeMutableRawBufferPointer(rebasing: UnsafeMutableRawBufferPointer(buffer)[filled...])
              .copyMemory(from: bytes)
          }
          return span.byteCount
        }
      }
    }
  }

  private static func make(_ period: Int, _ byte: (Int) -> UInt8) -> UnsafeRawBufferPointer {
    let block = UnsafeMutableRawBufferPointer.allocate(byteCount: period + window, alignment: 64)
    for index in 0..<period { block[index] = byte(index) }
    for index in period..<block.count { block[index] = block[index - period] }
    return UnsafeRawBufferPointer(block)
  }

  private static func contents(of path: String) throws(LoadError) -> [UInt8] {
    // Opening a FIFO would otherwise wait for its writer.
    let descriptor = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
    guard descriptor >= 0, let file = fdopen(descriptor, "r") else {
      throw .unreadableBody(path, String(cString: strerror(errno)))
    }
    defer { fclose(file) }
    var status = stat()
    guard fstat(fileno(file), &status) == 0, status.st_mode & S_IFMT == S_IFREG, status.st_size > 0 else {
      throw .unreadableBody(path, "it is empty, or not a regular file")
    }
    guard status.st_size <= fileLimit else {
      throw .unreadableBody(path, "it is longer than \(fileLimit >> 20) MiB: the whole file is kept in memory")
    }
    var bytes = [UInt8](repeating: 0, count: Int(status.st_size))
    guard fread(&bytes, 1, bytes.count, file) == bytes.count else {
      throw .unreadableBody(path, "it could not be read to its end")
    }
    return bytes
  }
}
