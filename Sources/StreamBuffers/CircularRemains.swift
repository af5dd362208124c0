// The remains of a killed process's circular buffer.

package import EventLoops
internal import Glibc
internal import Synchronization

extension CircularBuffer {
  /// The bytes of a buffer whose file another process has left in memory.
  package final class Remains {
    let memory: CircularMemory
    /// Offset of the first byte available.
    package let oldest: UInt64
    /// One past the last byte.
    package let head: UInt64
    /// The offset up to which the consumer had released bytes. The producer has taken those from here to ``oldest``.
    /// They are lost unless they were copied. Nil if an earlier version has written the buffer.
    package let consumed: UInt64?
    /// Whether the stream had ended.
    package let isFinished: Bool
    /// The consumer's note for another process; nil if there is none.
    package let note: String?

    /// What the process that made the buffer has left beside it.
    package var label: Label { memory.words.pointee.label }

    /// Opens the file of a buffer; nil if it is not a buffer, is damaged, or another version has written it.
    ///
    /// - Throws: ``SystemError`` when it cannot be read; `ENODATA` if another program has truncated it.
    package init?(path: String) throws(SystemError) {
      guard let memory = try CircularMemory(reading: path) else { return nil }
      self.memory = memory
      let words = memory.words
      head = words.pointee.head.load(ordering: .relaxed)
      let (written, read) = (
        words.pointee.pausesWritten.load(ordering: .relaxed), words.pointee.pausesRead.load(ordering: .relaxed)
      )
      // No stream gets that far, and no buffer has more pauses.
      guard head < 1 << 62, read >= 0, written >= read, written - read < CircularWords.pauseSlots else { return nil }
      let released = min(head, words.pointee.released.load(ordering: .relaxed))
      // It cannot contain more bytes than its capacity.
      oldest = max(released, head - min(head, UInt64(memory.capacity)))
      let after = words.pointee.consumed.load(ordering: .relaxed)
      consumed = after == 0 ? nil : min(head, after - 1)
      isFinished = words.pointee.finished.load(ordering: .relaxed)
      note = memory.note.text
    }

    /// The offset of the last pause that the consumer has passed. The stream continued after everything before it.
    package var passed: UInt64 { min(head, memory.pauses.lastPassed ?? 0) }

    /// The pauses from `position` on, and the total length of the pauses before it.
    package func pauses(from position: UInt64) -> Pauses { memory.pauses.pauses(from: position) }

    /// Copies bytes from `offset` on, which must not be before ``oldest``, and returns their number.
    package func copy(at offset: UInt64, into target: UnsafeMutableRawBufferPointer) -> Int {
      guard offset >= oldest, offset < head else { return 0 }
      let count = min(Int(clamping: head - offset), target.count)
      let start = memory.base + Int(offset % UInt64(memory.capacity))
      target.copyMemory(from: UnsafeRawBufferPointer(start: start, count: count))
      return count
    }
  }
}
