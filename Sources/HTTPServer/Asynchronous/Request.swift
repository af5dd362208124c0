// A request in a task: its head at once, and its body as it arrives.

public import HTTPMessages

/// One request to a server, for a handler that is a task.
///
///     { request in
///       var byteCount = 0
///       for try await chunk in request.body { byteCount += chunk.count }
///       return .ok("\(byteCount) bytes\n")
///     }
public struct Request: Sendable {
  /// The request line and the fields.
  public let head: RequestHead
  /// The human-readable address of the peer: `192.0.2.7:50312`, `[2001:db8::7]:50312` or `unix`.
  public let peer: String
  /// The content, without its framing. For a resumable upload, it is the whole representation, regardless of the number
  /// of connections.
  public let body: RequestBody

  /// The method.
  public var method: RequestMethod { RequestMethod(head.method) }
  /// The path as it was sent, with percent-encoding and dot segments.
  public var path: String { head.target.path }
  /// All fields, in the order in which they were sent.
  public var fields: HeaderFields { head.fields }
}
