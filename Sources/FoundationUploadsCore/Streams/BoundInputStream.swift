// The input stream of a bound pair.

internal import Foundation

/// Provides the bytes that are written to the bound output stream.
final class BoundInputStream: InputStream {
  let pair: BoundStreamPair

  init(_ pair: BoundStreamPair) {
    self.pair = pair
    super.init(data: Data())
    pair.perform { pair.inputEvents.begin(self) }
  }

  deinit { pair.dropInput() }

  override func open() { pair.openInput() }
  override func close() { pair.closeInput() }

  override func read(_ buffer: UnsafeMutablePointer<UInt8>, maxLength len: Int) -> Int {
    // It blocks, so there is always a result.
    pair.read(into: UnsafeMutableRawBufferPointer(start: buffer, count: max(0, len)), blocks: true) ?? -1
  }

  override func getBuffer(
    _ buffer: UnsafeMutablePointer<UnsafeMutablePointer<UInt8>?>, length len: UnsafeMutablePointer<Int>
  ) -> Bool { false }

  override var hasBytesAvailable: Bool { pair.hasBytesAvailable }
  override var streamStatus: Stream.Status { pair.inputStatus }
  override var streamError: (any Error)? { pair.inputError }
  override func property(forKey key: Stream.PropertyKey) -> AnyObject? { nil }
  override func setProperty(_ property: AnyObject?, forKey key: Stream.PropertyKey) -> Bool { false }

  // Not the property of the superclass, because the run loop's thread may read it while another changes it.
  override var delegate: (any StreamDelegate)? {
    get { pair.perform { pair.inputEvents.delegate } }
    set {
      pair.perform {
        pair.inputEvents.delegate = newValue
        pair.inputEvents.signal()
      }
    }
  }

  override func schedule(in aRunLoop: RunLoop, forMode mode: RunLoop.Mode) {
    pair.perform { pair.inputEvents.add(to: aRunLoop, mode: mode) }
  }

  override func remove(from aRunLoop: RunLoop, forMode mode: RunLoop.Mode) {
    pair.perform { pair.inputEvents.remove(from: aRunLoop, mode: mode) }
  }
}
