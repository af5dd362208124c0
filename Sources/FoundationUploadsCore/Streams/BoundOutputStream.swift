// The output stream of a bound pair.

internal import Foundation

/// Its bytes can be read from the bound input stream.
final class BoundOutputStream: OutputStream {
  private let pair: BoundStreamPair

  init(_ pair: BoundStreamPair) {
    self.pair = pair
    super.init(toMemory: ())
    pair.perform { pair.outputEvents.begin(self) }
  }

  /// Required by `OutputStream`. Its input end is never opened.
  required init(toMemory: ()) {
    pair = BoundStreamPair(bufferSize: 1)
    super.init(toMemory: toMemory)
  }

  deinit { pair.dropOutput() }

  override func open() { pair.openOutput() }
  override func close() { pair.closeOutput() }

  override func write(_ buffer: UnsafePointer<UInt8>, maxLength len: Int) -> Int {
    pair.write(UnsafeRawBufferPointer(start: buffer, count: max(0, len)))
  }

  override var hasSpaceAvailable: Bool { pair.hasSpaceAvailable }
  override var streamStatus: Stream.Status { pair.outputStatus }
  override var streamError: (any Error)? { pair.outputError }
  override func property(forKey key: Stream.PropertyKey) -> AnyObject? { nil }
  override func setProperty(_ property: AnyObject?, forKey key: Stream.PropertyKey) -> Bool { false }

  // Not the property of the superclass, because the run loop's thread may read it while another changes it.
  override var delegate: (any StreamDelegate)? {
    get { pair.perform { pair.outputEvents.delegate } }
    set {
      pair.perform {
        pair.outputEvents.delegate = newValue
        pair.outputEvents.signal()
      }
    }
  }

  override func schedule(in aRunLoop: RunLoop, forMode mode: RunLoop.Mode) {
    pair.perform { pair.outputEvents.add(to: aRunLoop, mode: mode) }
  }

  override func remove(from aRunLoop: RunLoop, forMode mode: RunLoop.Mode) {
    pair.perform { pair.outputEvents.remove(from: aRunLoop, mode: mode) }
  }
}
