// The shared state of the two streams of a bound pair: the ends, their states, and one lock for both.

internal import EventLoops
internal import Foundation
internal import Glibc
internal import StreamBuffers

/// Wraps a `BoundPair` as a bound pair of Foundation streams.
///
/// All calls on the ends are made under the lock. So when a call returns, the events that it caused at the other end
/// have been recorded, and blocking calls miss none.
final class BoundStreamPair: @unchecked Sendable {
  /// One end as its owner sees it.
  struct Side {
    var status = Stream.Status.notOpen
    var error: NSError?
    /// How many calls are blocked at the moment.
    var blocked = 0
  }

  private let monitor = Monitor()
  private let outputEnd: BoundPair.Output
  private let inputEnd: BoundPair.Input
  private var output = Side()
  private var input = Side()
  /// Whether the output end may write once.
  private var hasSpace = false
  let outputEvents: StreamEvents
  let inputEvents: StreamEvents
  /// A reader of the input without a run loop, which must be notified when it can continue.
  private var reader: (@Sendable () -> Void)?
  private var readerHasNews = false

  init(bufferSize: Int) {
    let ends = BoundPair.make(bufferSize: bufferSize)
    outputEnd = ends.output
    inputEnd = ends.input
    outputEvents = StreamEvents(monitor: monitor)
    inputEvents = StreamEvents(monitor: monitor)
  }

  /// Changes something under the lock. Then, without the lock, notifies the run loops and the reader.
  func perform<Result>(_ body: () -> Result) -> Result {
    let (result, outputNews, inputNews, reader) = monitor.withLock {
      let result = body()
      defer { readerHasNews = false }
      return (result, outputEvents.takeNews(), inputEvents.takeNews(), readerHasNews ? self.reader : nil)
    }
    outputNews?.tell()
    inputNews?.tell()
    reader?()
    return result
  }

  // MARK: The output end

  var outputStatus: Stream.Status {
    monitor.withLock { output.status == .open && output.blocked > 0 ? .writing : output.status }
  }
  var outputError: NSError? { monitor.withLock { output.error } }
  var hasSpaceAvailable: Bool { monitor.withLock { output.status == .open && hasSpace } }

  func openOutput() {
    perform {
      guard output.status == .notOpen else { return }
      output.status = .open
      outputEvents.post(.openCompleted)
      outputEnd.open { [weak self] in self?.noteOutput($0) }
    }
  }

  /// Called from within the pair, and therefore under the lock.
  private func noteOutput(_ event: BoundPair.OutputEvent) {
    switch event {
    case .spaceAvailable:
      hasSpace = true
      outputEvents.post(.hasSpaceAvailable)
    case .endEncountered: endOutput(.atEnd, nil, .endEncountered)
    case .errorOccurred(let error): endOutput(.error, Self.brokenPipe(error), .errorOccurred)
    }
    monitor.wakeAll()
  }

  private func endOutput(_ status: Stream.Status, _ error: NSError?, _ event: Stream.Event) {
    hasSpace = false
    guard output.status == .open else { return }
    (output.status, output.error) = (status, error)
    outputEvents.withdraw(.hasSpaceAvailable)
    outputEvents.post(event)
  }

  private static func brokenPipe(_ error: BoundPair.StreamError) -> NSError {
    NSError(domain: NSPOSIXErrorDomain, code: Int(EPIPE), userInfo: [NSLocalizedDescriptionKey: error.description])
  }

  /// Writes as much as fits, at least one byte, and waits for space if necessary.
  func write(_ bytes: UnsafeRawBufferPointer) -> Int {
    perform {
      while output.status == .open {
        guard bytes.count > 0 else { return 0 }
        hasSpace = false
        outputEvents.withdraw(.hasSpaceAvailable)
        switch outputEnd.write(RawSpan(_unsafeBytes: bytes)) {
        case .accepted(let count): return count
        case .refused(.noSpaceSignalled): block(\.output)
        case .refused: return -1
        }
      }
      return -1
    }
  }

  func closeOutput() {
    perform {
      guard output.status != .notOpen else { return }
      hasSpace = false
      outputEvents.withdrawAll()
      outputEvents.removeAll()
      // A failed stream stays failed, as in Foundation.
      if output.status != .error { output.status = .closed }
      outputEnd.close()
      monitor.wakeAll()
    }
  }

  /// The stream object was released. Its written bytes can still be read.
  func dropOutput() {
    perform {
      outputEvents.removeAll()
      outputEnd.close()
    }
  }

  // MARK: The input end

  var inputStatus: Stream.Status {
    monitor.withLock { input.status == .open && input.blocked > 0 ? .reading : input.status }
  }
  var inputError: NSError? { monitor.withLock { input.error } }
  var hasBytesAvailable: Bool {
    monitor.withLock { if input.status == .open, case .bytes = peek() { true } else { false } }
  }

  func openInput() {
    perform {
      guard input.status == .notOpen else { return }
      input.status = .open
      inputEvents.post(.openCompleted)
      inputEnd.open { [weak self] in self?.noteInput($0) }
    }
  }

  /// Called from within the pair, and therefore under the lock.
  private func noteInput(_ event: BoundPair.InputEvent) {
    switch event {
    case .bytesAvailable: inputEvents.post(.hasBytesAvailable)
    case .endEncountered: endInput()
    case .errorOccurred(let error): failInput(Self.brokenPipe(error))
    }
    readerHasNews = true
    monitor.wakeAll()
  }

  private func endInput() {
    guard input.status == .open else { return }
    input.status = .atEnd
    inputEvents.withdraw(.hasBytesAvailable)
    inputEvents.post(.endEncountered)
  }

  private func failInput(_ error: NSError) {
    guard input.status == .open else { return }
    (input.status, input.error) = (.error, error)
    inputEvents.withdraw(.hasBytesAvailable)
    inputEvents.post(.errorOccurred)
  }

  /// The result that a read would have.
  private func peek() -> BoundPair.ReadResult {
    var nothing = MutableRawSpan()
    return inputEnd.read(into: &nothing)
  }

  /// Reads the available bytes, at least one.
  ///
  /// - Returns: 0 at the end, and -1 after a failure or if the stream is not open; nil if no bytes are available and it
  ///   must not block.
  func read(into bytes: UnsafeMutableRawBufferPointer, blocks: Bool) -> Int? {
    perform {
      while input.status == .open {
        guard bytes.count > 0 else { return 0 }
        inputEvents.withdraw(.hasBytesAvailable)
        var target = MutableRawSpan(_unsafeBytes: bytes)
        switch inputEnd.read(into: &target) {
        case .bytes(let count):
          noteRest()
          return count
        case .empty:
          guard blocks else { return nil }
          block(\.input)
        case .end: endInput()
        case .failed(let error): failInput(Self.brokenPipe(error))
        case .refused: return -1
        }
      }
      return input.status == .atEnd ? 0 : -1
    }
  }

  /// Posts the event after a read: another one if there is more, or the end after the last byte.
  private func noteRest() {
    switch peek() {
    case .bytes: inputEvents.post(.hasBytesAvailable)
    case .end: endInput()
    case .empty, .failed, .refused: break
    }
  }

  func closeInput() {
    perform {
      guard input.status != .notOpen else { return }
      closeInputSide()
      inputEnd.close()
    }
  }

  /// The upload that reads the stream has failed, so the output end fails too.
  func failInputEnd(_ reason: String) {
    perform {
      closeInputSide()
      inputEnd.fail(BoundPair.StreamError(reason))
    }
  }

  private func closeInputSide() {
    inputEvents.withdrawAll()
    inputEvents.removeAll()
    if input.status != .error { input.status = .closed }
    reader = nil
    monitor.wakeAll()
  }

  func dropInput() {
    perform {
      inputEvents.removeAll()
      inputEnd.close()
    }
  }

  /// Calls `reader` on any thread when bytes are available or the end has come, after ``read(into:blocks:)`` has found
  /// nothing.
  func observeInput(_ reader: (@Sendable () -> Void)?) { monitor.withLock { self.reader = reader } }

  // MARK: Blocking

  private func block(_ side: ReferenceWritableKeyPath<BoundStreamPair, Side>) {
    self[keyPath: side].blocked += 1
    monitor.wait()
    self[keyPath: side].blocked -= 1
  }
}
