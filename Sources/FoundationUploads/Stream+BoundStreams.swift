// Foundation's way to make a bound pair of streams, which Linux lacks.

public import Foundation
internal import FoundationUploadsCore

extension Stream {
  /// Makes two streams. What is written into the output stream is read from the input stream.
  ///
  /// Both have to be opened. They work with run loops, and without: a read blocks until there are bytes, and a write
  /// until there is room. Each may be used from any thread, and be scheduled in the run loop of any thread.
  ///
  /// - Parameters:
  ///   - bufferSize: how many bytes can be written before any is read.
  ///   - inputStream: set to the stream to be read from.
  ///   - outputStream: set to the stream to be written to.
  public class func getBoundStreams(
    withBufferSize bufferSize: Int, inputStream: UnsafeMutablePointer<InputStream?>?,
    outputStream: UnsafeMutablePointer<OutputStream?>?
  ) {
    let streams = BoundStreams(bufferSize: bufferSize)
    inputStream?.pointee = streams.input
    outputStream?.pointee = streams.output
  }
}
