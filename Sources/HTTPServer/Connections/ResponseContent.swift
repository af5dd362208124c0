// The content of a response that is too large for memory. It is read while it is sent, at the client's pace.

package import HTTPMessages

/// The content of a response after its head. All calls are made on the loop's thread.
package protocol ResponseContent: AnyObject {
  /// The response's `Content-Length`.
  var length: UInt64 { get }
  /// Reads the next bytes, at most `limit`, and later calls `completion` on the loop's thread. Nothing is read ahead:
  /// the next call is made when the client's TCP has accepted these bytes.
  ///
  /// - Parameter completion: receives at least one byte, or nil if there are no more and the client must notice that
  ///   its content is incomplete.
  func read(atMost limit: Int, _ completion: @escaping ([UInt8]?) -> Void)
  /// The last call. The content was sent completely, or failed for this reason.
  ///
  /// - Parameter sent: how many of its bytes the kernel has accepted.
  func ended(sent: UInt64, _ reason: AbortReason?)
}

/// Sends the final response of an exchange with content that is read while it is sent. Only the modules of this package
/// can use it.
public struct ContentResponder {
  private let exchange: ConnectionExchange

  init(_ exchange: ConnectionExchange) { self.exchange = exchange }

  /// Sends the final response with `content` instead of the response's own body.
  package func respond(_ response: Response, _ content: any ResponseContent) { exchange.respond(response, content) }
}
