// Foundation's method for a bound pair of streams, which is missing on Linux.

public import Foundation
internal import FoundationUploadsCore

extension Stream {
  /// Creates two connected streams. Bytes that are written to the output stream are read from the input stream.
  ///
  /// Open both streams before use. They work with and without run loops: a read blocks until there are bytes, and a
  /// write until there is room. Each may be used from any thread, and scheduled in the run loop of any thread.
  ///
  /// - Parameters:
  ///   - bufferSize: the number of bytes that can be written before any is read.
  ///   - inputStream: set to the stream to read from.
  ///   - outputStream: set to the stream to write to.
  public class func getBoundStreams(
    withBufferSize bufferSize: Int, inputStream: UnsafeMutablePointer<InputStream?>?,
    outputStream: UnsafeMutablePointer<OutputStream?>?
  ) {
    let streams = BoundStreams(bufferSize: bufferSize)
    inputStream?.pointee = streams.input
    outputStream?.pointee = streams.output
  }
}
