// Request methods as values, so that a misspelt one does not compile.

/// A request method (RFC 9110, section 9). Methods are case-sensitive.
public struct RequestMethod: Hashable, Sendable, ExpressibleByStringLiteral, CustomStringConvertible {
  /// The method as it is sent.
  public let name: String

  /// Creates the method of this name.
  public init(_ name: String) { self.name = name }
  /// Creates the method of this name.
  public init(stringLiteral name: String) { self.init(name) }
  /// The method's name.
  public var description: String { name }

  /// `GET` (RFC 9110, section 9.3.1).
  public static let get = RequestMethod("GET")
  /// `HEAD` (RFC 9110, section 9.3.2).
  public static let head = RequestMethod("HEAD")
  /// `POST` (RFC 9110, section 9.3.3).
  public static let post = RequestMethod("POST")
  /// `PUT` (RFC 9110, section 9.3.4).
  public static let put = RequestMethod("PUT")
  /// `PATCH` (RFC 5789).
  public static let patch = RequestMethod("PATCH")
  /// `DELETE` (RFC 9110, section 9.3.5).
  public static let delete = RequestMethod("DELETE")
}
