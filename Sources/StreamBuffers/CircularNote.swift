// A text that the consumer of a circular buffer leaves for whoever finds the buffer's file.

internal import Synchronization

/// Two places for the text, behind the words of the buffer. A new text goes to the place that does not have the last
/// one; then one store makes it the last. A process that is killed at any moment leaves one of the two, whole. It takes
/// no system call, and no room that the buffer does not have already.
struct CircularNote: @unchecked Sendable {
  // Unchecked: one thread writes, and another process reads afterwards.
  let words: UnsafeMutablePointer<CircularWords>

  /// The longest text, in bytes of UTF-8.
  static let longest = 8 << 10
  /// Where the first place is, behind the words.
  static let offset = 4096
  /// Of one place: the text, and its length in front of it.
  private static let place = longest + 16
  /// Of both places, in bytes.
  static let length = 2 * place

  private func place(_ number: Int) -> UnsafeMutableRawPointer {
    UnsafeMutableRawPointer(words) + Self.offset + number & 1 * Self.place
  }

  /// Replaces the text. One thread. A longer one than ``longest`` is not taken.
  func write(_ text: String) {
    let count = words.pointee.noteCount.load(ordering: .relaxed) &+ 1
    var text = text
    text.withUTF8 { bytes in
      guard bytes.count <= Self.longest else { return }
      let place = place(count)
      place.storeBytes(of: UInt64(bytes.count), as: UInt64.self)
      if let base = bytes.baseAddress { (place + 16).copyMemory(from: base, byteCount: bytes.count) }
      words.pointee.noteCount.store(count, ordering: .releasing)
    }
  }

  /// The last text; nil where there was none.
  var text: String? {
    let count = words.pointee.noteCount.load(ordering: .acquiring)
    guard count != 0 else { return nil }
    let place = place(count)
    // More only in a file that somebody else has written.
    let length = Int(clamping: min(place.load(as: UInt64.self), UInt64(Self.longest)))
    return String(decoding: UnsafeRawBufferPointer(start: place + 16, count: length), as: UTF8.self)
  }
}

extension CircularBuffer {
  /// Where the consumer's thread leaves a text for another process.
  package struct Note: Sendable {
    let storage: CircularStorage

    /// Replaces the text, at most 8 KiB of UTF-8, all at once.
    package func write(_ text: String) { storage.note.write(text) }
  }
}
