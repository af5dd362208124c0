// A bound pair of Foundation streams, for the facade.

public import Foundation

/// The two streams of a bound pair: what is written into one is read from the other.
public struct BoundStreams {
  /// Gives what is written into ``output``.
  public let input: InputStream
  /// Takes what ``input`` is to give.
  public let output: OutputStream

  /// - Parameter bufferSize: in bytes; less than 1 counts as 1.
  public init(bufferSize: Int) {
    let pair = BoundStreamPair(bufferSize: max(1, bufferSize))
    (input, output) = (BoundInputStream(pair), BoundOutputStream(pair))
  }
}
