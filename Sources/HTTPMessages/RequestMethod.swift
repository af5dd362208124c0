// The methods of requests as values, so that a misspelt one does not compile.

/// A request method (RFC 9110, section 9). Case matters.
public struct RequestMethod: Hashable, Sendable, ExpressibleByStringLiteral, CustomStringConvertible {
  public let name: String

  public init(_ name: String) { self.name = name }
  public init(stringLiteral name: String) { self.init(name) }
  public var description: String { name }

  public static let get = RequestMethod("GET")
  public static let head = RequestMethod("HEAD")
  public static let post = RequestMethod("POST")
  public static let put = RequestMethod("PUT")
  public static let patch = RequestMethod("PATCH")
  public static let delete = RequestMethod("DELETE")
}
