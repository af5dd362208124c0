// What a router has for a request that may be an upload, so that nobody has to look what kind of handler it is.

package import HTTPServer

/// A new handler, and who keeps the bytes of the body that it is given.
package enum RoutedHandler {
  /// The handler itself: it may be given up at any time, and begun again.
  case keeping(any KeepingRequestHandler)
  /// Nobody, or whoever stands in front of it. It sees one request from beginning to end.
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
