// A text that the consumer of a circular buffer leaves for a process that finds the buffer's file.

internal import Synchronization

/// Two slots for the text, after the words of the buffer. A new text goes to the slot that does not have the last one,
/// and then one store makes it the last. A process killed at any moment leaves one of the two intact. This needs no
/// system call, and no memory beyond the buffer's.
struct CircularNote: @unchecked Sendable {
  // Unchecked: one thread writes, and another process reads afterwards.
  let words: UnsafeMutablePointer<CircularWords>
  /// The words in the buffer's file; nil if no other process can find it. Then nothing is written.
  let published: UnsafeMutablePointer<CircularWords>?

  /// The longest text, in bytes of UTF-8.
  static let longest = 8 << 10
  /// The offset of the first slot, after the words.
  static let offset = 4096
  /// The size of one slot: the text, with its length before it.
  private static let place = longest + 16
  /// The size of both slots, in bytes.
  static let length = 2 * place

  private static func slot(
    _ number: Int, _ published: UnsafeMutablePointer<CircularWords>
  ) -> UnsafeMutableRawPointer {
    UnsafeMutableRawPointer(published) + offset + number & 1 * place
  }

  /// Replaces the text. One thread. A text longer than ``longest`` is ignored.
  func write(_ text: String) {
    guard let published else { return }
    let count = words.pointee.noteCount.load(ordering: .relaxed) &+ 1
    var text = text
    text.withUTF8 { bytes in
      guard bytes.count <= Self.longest else { return }
      let place = Self.slot(count, published)
      place.storeBytes(of: UInt64(bytes.count), as: UInt64.self)
      if let base = bytes.baseAddress { (place + 16).copyMemory(from: base, byteCount: bytes.count) }
      published.pointee.noteCount.store(count, ordering: .releasing)
      words.pointee.noteCount.store(count, ordering: .relaxed)
    }
  }

  /// The last text; nil if there was none.
  var text: String? {
    let count = words.pointee.noteCount.load(ordering: .acquiring)
    guard let published, count != 0 else { return nil }
    let place = Self.slot(count, published)
    // Longer only in a file that another program has written.
    let length = Int(clamping: min(place.load(as: UInt64.self), UInt64(Self.longest)))
    return String(decoding: UnsafeRawBufferPointer(start: place + 16, count: length), as: UTF8.self)
  }
}

extension CircularBuffer {
  /// Where the consumer's thread leaves a text for another process.
  package struct Note: Sendable {
    let storage: CircularStorage

    /// Replaces the text atomically, with at most 8 KiB of UTF-8.
    package func write(_ text: String) { storage.note.write(text) }
  }
}
