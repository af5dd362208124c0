// The writer between the circular buffer and the bound pair: it writes when the pair says that it has space, never before.

internal import StreamBuffers

/// Drains a circular buffer into the output end of one bound pair after another. Owned by the network loop's thread;
/// unchecked for that reason.
final class StreamWriter: @unchecked Sendable {
  private(set) var consumer: CircularBuffer.Consumer
  /// Stream offset of the next byte to be written into the pair.
  private(set) var cursor: UInt64 = 0

  private var output: BoundPair.Output?
  private var canWrite = false
  private var isWriting = false
  /// Called after bytes went into the pair, possibly from within libcurl: it must not call into libcurl.
  var didWrite: () -> Void = {}

  init(consumer: consuming CircularBuffer.Consumer) { self.consumer = consumer }

  /// Writes into `output` from `offset` on.
  func attach(_ output: consuming BoundPair.Output, at offset: UInt64) {
    cursor = offset
    canWrite = false
    self.output = consume output
    self.output?.open { [weak self] event in self?.handle(event) }
  }

  /// The pair is of no use any more.
  func detach() {
    output = nil
    canWrite = false
  }

  func release(upTo offset: UInt64) { consumer.release(upTo: offset) }

  private func handle(_ event: BoundPair.OutputEvent) {
    switch event {
    case .spaceAvailable:
      canWrite = true
      write()
    case .endEncountered, .errorOccurred:
      // The request is over; its owner is told by the request itself.
      canWrite = false
    }
  }

  /// Writes as much as there is and as the pair takes. Called when bytes have come or the pair has space.
  func write() {
    guard !isWriting else { return }
    isWriting = true
    let start = cursor
    defer {
      isWriting = false
      if cursor != start { didWrite() }
    }
    while canWrite {
      switch consumer.read(at: cursor, { write($0) }) {
      case .bytes(let count):
        cursor += UInt64(count)
      case .empty:
        // In this order: after the producer has finished, the head is final.
        if consumer.isFinished, consumer.head == cursor {
          canWrite = false
          output?.close()
        } else if consumer.requestWakeUp(beyond: cursor) {
          return
        }
      case .overwritten:
        canWrite = false
        output?.fail(BoundPair.StreamError("bytes that were due had to make room for newer ones"))
      }
    }
  }

  private func write(_ bytes: RawSpan) -> Int {
    canWrite = false
    guard case .accepted(let count)? = output?.write(bytes) else { return 0 }
    return count
  }
}
