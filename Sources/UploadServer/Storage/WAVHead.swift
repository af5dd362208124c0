// The head of a WAV file, so that each part of a stream that is kept in several files can begin with one.

/// Everything before the samples of a RIFF/WAVE file, and how long a frame is.
///
/// Both sizes of the copy are 0xFFFFFFFF ("to the end of the file"), because nobody knows how long the next file will
/// be.
struct WAVHead: Equatable, Sendable {
  /// Longer heads, with many chunks before the samples, are not copied.
  static let maximumLength = 4096

  /// From `RIFF` to the size of the `data` chunk.
  private(set) var bytes: [UInt8]
  /// Bytes of one sample of every channel, at least 1.
  private(set) var frameLength = 1

  /// Reads the head of a file that begins with `octets`; nil if they do not hold all of one.
  init?(_ octets: [UInt8]) {
    bytes = []
    func number(_ position: Int, _ length: Int) -> Int {
      octets[position..<(position + length)].reversed().reduce(0) { $0 << 8 | Int($1) }
    }
    func says(_ text: StaticString, _ position: Int) -> Bool {
      octets[position..<(position + 4)].elementsEqual(UnsafeBufferPointer(start: text.utf8Start, count: 4))
    }
    guard octets.count >= 12, says("RIFF", 0), says("WAVE", 8) else { return nil }
    var sizes = [4]
    var position = 12
    while position + 8 <= octets.count {
      let size = number(position + 4, 4)
      if says("data", position) {
        bytes = Array(octets[..<(position + 8)])
        sizes.append(position + 4)
        break
      }
      // 32 bits each: no sum of these overflows.
      let next = position + 8 + size + size % 2
      guard next <= octets.count else { return nil }
      if says("fmt ", position), size >= 16 { frameLength = max(1, number(position + 20, 2)) }
      // How many frames there are, for formats other than PCM.
      if says("fact", position), size >= 4 { sizes.append(position + 8) }
      position = next
    }
    guard !bytes.isEmpty else { return nil }
    for size in sizes { for index in size..<(size + 4) { bytes[index] = 0xFF } }
  }
}
