// The head of a WAV file. Each part of a stream in several files can begin with one, and the head of a finished file
// gets its true sizes.

/// Everything before the samples of a RIFF/WAVE file, and the length of a frame.
package struct WAVHead: Equatable, Sendable {
  /// Longer heads, with many chunks before the samples, are not read.
  package static let maximumLength = 4096
  /// From here on, a 32-bit size means "not known yet". Programs that cannot seek write 0, 0x7FFFF000, 0x7FFFFFFF,
  /// 0x80000000 or 0xFFFFFFFF, some of them plus or minus the length of the head.
  private static let leastOpenSize: UInt32 = 0x7FFF_F000
  /// The size of the `ds64` chunk of RF64 (EBU Tech 3306): three sizes of 64 bits, and the length of an empty table.
  private static let ds64Length = 28

  /// The bytes from `RIFF` to the size of the `data` chunk, as they were read.
  package let received: [UInt8]
  /// Bytes of one sample of every channel, at least 1.
  package private(set) var frameLength = 1
  /// Frames per second; 0 if the head has no format.
  package private(set) var rate = 0
  /// Whether frames can be counted: PCM, floating point, or one of both in the extensible form.
  private var isPlain = false
  /// The position of the number of frames in the `fact` chunk.
  private var factPosition: Int?
  /// The length of the first chunk, if it is reserved for `ds64`.
  private var junkLength: Int?
  private var dataPosition: Int { received.count - 4 }

  /// Reads the head of a file that begins with `octets`; nil if they do not contain a complete head.
  package init?(_ octets: [UInt8]) {
    func number(_ position: Int, _ length: Int) -> Int {
      octets[position..<(position + length)].reversed().reduce(0) { $0 << 8 | Int($1) }
    }
    func says(_ text: StaticString, _ position: Int) -> Bool {
      octets[position..<(position + 4)].elementsEqual(UnsafeBufferPointer(start: text.utf8Start, count: 4))
    }
    guard octets.count >= 12, says("RIFF", 0), says("WAVE", 8) else { return nil }
    var length: Int?
    var position = 12
    while position + 8 <= octets.count {
      let size = number(position + 4, 4)
      if says("data", position) {
        length = position + 8
        break
      }
      // These are 32-bit values, so no sum of them overflows.
      let next = position + 8 + size + size % 2
      guard next <= octets.count else { return nil }
      if says("JUNK", position), position == 12, size >= Self.ds64Length { junkLength = size }
      if says("fmt ", position), size >= 16 {
        frameLength = max(1, number(position + 20, 2))
        rate = number(position + 12, 4)
        isPlain = [1, 3, 0xFFFE].contains(number(position + 8, 2))
      }
      if says("fact", position), size >= 4 { factPosition = position + 8 }
      position = next
    }
    guard let length else { return nil }
    received = Array(octets[..<length])
  }

  /// The head with all sizes 0xFFFFFFFF ("to the end of the file"), because the length of the next file is unknown.
  package var bytes: [UInt8] {
    var bytes = received
    for position in [4, dataPosition] + (factPosition.map { [$0] } ?? []) { Self.put(UInt32.max, position, &bytes) }
    return bytes
  }

  /// The head of the finished file, with its true sizes in place of the open ones. Beyond 4 GiB it is a head of RF64,
  /// if a `JUNK` chunk reserves space for that. Bytes of an incomplete last frame do not count.
  ///
  /// - Parameter fileLength: in bytes, including the head.
  /// - Returns: as many bytes as ``received``; nil if the head must stay as it is.
  package func finished(fileLength: UInt64) -> [UInt8]? {
    guard fileLength >= received.count, isOpen, !isTrue(ofLength: fileLength) else { return nil }
    let frames = (fileLength - UInt64(received.count)) / UInt64(frameLength)
    let data = frames * UInt64(frameLength)
    let whole = data + UInt64(received.count) - 8
    var bytes = received
    if whole < UInt32.max {
      Self.put(UInt32(whole), 4, &bytes)
      Self.put(UInt32(data), dataPosition, &bytes)
      putFrames(UInt32(clamping: frames), &bytes)
    } else {
      guard junkLength != nil else { return nil }
      bytes.replaceSubrange(0..<4, with: "RF64".utf8)
      bytes.replaceSubrange(12..<16, with: "ds64".utf8)
      Self.put(whole, 20, &bytes)
      Self.put(data, 28, &bytes)
      Self.put(frames, 36, &bytes)
      Self.put(UInt32(0), 44, &bytes)
      for position in [4, dataPosition] { Self.put(UInt32.max, position, &bytes) }
      putFrames(.max, &bytes)
    }
    return bytes == received ? nil : bytes
  }

  /// The received form of a corrected head.
  ///
  /// The bytes outside of the sizes come from `corrected`. So the result is right even if these were damaged when
  /// ``received`` was read, and were repaired since.
  ///
  /// - Parameters:
  ///   - corrected: the beginning of the finished file.
  ///   - fileLength: in bytes, including the head.
  /// - Returns: as many bytes as ``received``; nil if `corrected` is not the corrected form of such a head.
  package func undoing(_ corrected: [UInt8], fileLength: UInt64) -> [UInt8]? {
    guard corrected.count == received.count, let finished = finished(fileLength: fileLength) else { return nil }
    let head = corrected.indices.map { finished[$0] == received[$0] ? corrected[$0] : received[$0] }
    return WAVHead(head)?.finished(fileLength: fileLength) == corrected ? head : nil
  }

  /// Whether both sizes are open. A head with true sizes must never change.
  package var isOpen: Bool {
    let (riff, data) = (number(4), number(dataPosition))
    let opensRIFF = riff == 0 || riff >= Self.leastOpenSize || Int(riff) <= received.count
    return opensRIFF && (data == 0 || data >= Self.leastOpenSize)
  }

  /// Whether large sizes are those of a file of this length, which may have more chunks after its samples.
  private func isTrue(ofLength fileLength: UInt64) -> Bool {
    let (riff, data) = (UInt64(number(4)), UInt64(number(dataPosition)))
    // A chunk of odd size is followed by a byte that does not count.
    return data >= Self.leastOpenSize && riff + 8 + (fileLength == riff + 9 ? riff % 2 : 0) == fileLength
      && data + UInt64(received.count) <= fileLength
  }

  private func putFrames(_ frames: UInt32, _ bytes: inout [UInt8]) {
    guard let factPosition, isPlain else { return }
    let given = number(factPosition)
    if given == 0 || given >= Self.leastOpenSize { Self.put(frames, factPosition, &bytes) }
  }

  private func number(_ position: Int) -> UInt32 {
    received[position..<(position + 4)].reversed().reduce(0) { $0 << 8 | UInt32($1) }
  }

  private static func put(_ number: some FixedWidthInteger, _ position: Int, _ bytes: inout [UInt8]) {
    for index in 0..<(number.bitWidth / 8) {
      bytes[position + index] = UInt8(truncatingIfNeeded: number >> (8 * index))
    }
  }
}
