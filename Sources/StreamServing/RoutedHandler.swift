// The result of routing a request that may be an upload. It shows the kind of handler without a cast.

package import HTTPServer

/// A new handler, and who keeps the bytes of its body.
package enum RoutedHandler {
  /// The handler itself. It may be abandoned at any time and begun again.
  case keeping(any KeepingRequestHandler)
  /// Nobody, or a wrapper in front of the handler, which sees one request from beginning to end.
  case other(any RequestHandler)

  package var handler: any RequestHandler {
    switch self {
    case .keeping(let handler): handler
    case .other(let handler): handler
    }
  }

  package var keeper: (any KeepingRequestHandler)? {
    if case .keeping(let keeper) = self { keeper } else { nil }
  }
}
