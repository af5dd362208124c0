// A bound pair of Foundation streams, for the Foundation interface.

public import Foundation

/// The two streams of a bound pair. Bytes that are written to one are read from the other.
public struct BoundStreams {
  /// Reads the bytes that were written to ``output``.
  public let input: InputStream
  /// Writes the bytes for ``input``.
  public let output: OutputStream

  /// Creates a pair of connected streams.
  ///
  /// - Parameter bufferSize: in bytes. A value below 1 counts as 1.
  public init(bufferSize: Int) {
    let pair = BoundStreamPair(bufferSize: max(1, bufferSize))
    (input, output) = (BoundInputStream(pair), BoundOutputStream(pair))
  }
}
