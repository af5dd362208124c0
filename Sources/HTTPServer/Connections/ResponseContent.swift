// The content of a response that is too large for memory. It is read while it is sent, at the client's pace.

internal import EventLoops
package import HTTPMessages

/// What a response carries besides its head. All calls come on the loop's thread.
package protocol ResponseContent: AnyObject {
  /// In bytes: the response's `Content-Length`.
  var length: UInt64 { get }
  /// Reads the next bytes, at most `limit`, and calls `completion` on the loop's thread, later. Nothing is read ahead:
  /// the next call comes when the client's TCP has taken these.
  ///
  /// - Parameter completion: given at least one byte; nil if there are no more, and the client is to see that its content
  ///   is not whole.
  func read(atMost limit: Int, _ completion: @escaping ([UInt8]?) -> Void)
  /// The last call: the content was sent as a whole, or not, and why.
  ///
  /// - Parameter sent: how many bytes the kernel has taken of it.
  func ended(sent: UInt64, _ reason: AbortReason?)
}

/// An exchange whose final response can have content that is read while it is sent: a connection. A request that several
/// connections bring in parts has none.
package protocol ContentExchange: Exchange {
  /// Sends the final answer, whose body is `content` and not the response's own.
  func respond(_ response: Response, _ content: any ResponseContent)
}

/// A connection's side of the content that it sends.
struct OutgoingContent {
  /// How much of it is in memory at once, in bytes: what keeps a fast network busy while the next is read.
  static let pieceSize = 256 << 10

  let source: any ResponseContent
  /// How much of it was not read yet, in bytes.
  var unread: UInt64
  /// Whether the next piece is being read.
  var isReading = false

  init(_ source: any ResponseContent) { (self.source, unread) = (source, source.length) }
}
