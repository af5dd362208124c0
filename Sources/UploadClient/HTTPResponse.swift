// A response from the perspective of an upload's caller, interim or final.

internal import CCurl
public import HTTPMessages

/// The head of an HTTP response and, for a final one, the beginning of its body.
public struct HTTPResponse: Equatable, Sendable {
  /// Status code, 100–599 (RFC 9110, section 15).
  public var status: Int
  /// Field lines in the order received, with the spelling of their names.
  public var fields: HeaderFields
  /// The first bytes of the body, at most ``UploadRequest/responseBodyLimit``. Empty for interim responses. Servers
  /// often state their reasons here.
  public var body: [UInt8] = []
  /// Trailer fields, which followed the content (RFC 9110, section 6.5), in the order received. They are available at
  /// the end of a request in ``UploadTask/Outcome/response``.
  public var trailers = HeaderFields()
  /// The version of HTTP that the response states.
  package var version = Version.http11

  /// A version of HTTP.
  package enum Version: Comparable, Sendable {
    /// HTTP/1.0.
    case http10
    /// HTTP/1.1.
    case http11
    /// HTTP/2 or a later version.
    case http2
  }

  /// The default number of bytes of a response's body to keep.
  public static let bodyLimit = 16 * 1024

  /// Creates a response without a body.
  public init(status: Int, fields: HeaderFields = [:]) {
    self.status = status
    self.fields = fields
  }

  /// 1xx: another response follows (RFC 9110, section 15.2).
  public var isInterim: Bool { (100..<200).contains(status) }
  /// 2xx.
  public var isSuccess: Bool { (200..<300).contains(status) }
  /// Whether the status confirms the whole content of a request without resumable uploads. A 206 does not.
  package var confirmsContent: Bool { ConfirmingStatus.contains(status) }

  /// The value of the first field line of that name, compared case-insensitively (RFC 9110, section 5.1). The
  /// subscript of ``fields`` joins all lines of that name.
  public subscript(name: String) -> String? { fields.first(name) }

  /// Whether the response has a `Transfer-Encoding` other than `chunked`. No request of this package accepts one.
  /// libcurl ignores the `Content-Length` beside it, so a truncated body cannot be distinguished from a complete one.
  package var hasOddTransferCoding: Bool {
    fields["Transfer-Encoding"].map { !$0.isSameWord(as: "chunked") } ?? false
  }

  /// The body as text, without its trailing line ends. Nil if it is empty or not UTF-8.
  public var text: String? {
    guard !body.isEmpty, let text = String(validating: body, as: UTF8.self) else { return nil }
    var trimmed = text[...]
    while let last = trimmed.last, last.isNewline { trimmed.removeLast() }
    return String(trimmed)
  }
}

extension HTTPResponse: CustomStringConvertible {
  /// The status and the reason in the body: `404: no such directory`.
  public var description: String { "\(status)" + (reason.map { ": \($0)" } ?? "") }
}

extension HTTPResponse {
  /// The delay that the server requests: `Retry-After`, in seconds or as a date (RFC 9110, section 10.2.3).
  ///
  /// - Parameter wallClock: the current time in seconds since 1970.
  package func retryAfter(wallClock: Int) -> Duration? {
    guard let value = self["Retry-After"] else { return nil }
    if let seconds = Int64(value) { return seconds >= 0 ? .seconds(seconds) : nil }
    // -1 for an invalid date.
    let date = curl_getdate(value, nil)
    return date < 0 ? nil : .seconds(max(0, date - wallClock))
  }
}

extension HTTPResponse {
  /// The server's reason from the body, in one line of at most 200 characters: the title of an HTML page, or the
  /// beginning of a text. The values of a URL's query are omitted, because many servers repeat those of the request,
  /// and one of them may be a signature. Nil if there is no human-readable text.
  public var reason: String? {
    guard let text = String(validating: body, as: UTF8.self) else { return nil }
    let start = text.prefix(64).drop { $0.isWhitespace }.lowercased()
    let isMarkup = self["Content-Type"]?.lowercased().contains("html") ?? start.hasPrefix("<")
    let line = UploadRequest.withoutQueryValues(
      Self.line(isMarkup || start.hasPrefix("<") ? Self.title(of: text) : text[...]))
    return line.isEmpty ? nil : line.count > 200 ? line.prefix(197) + "..." : line
  }

  private static func title(of page: String) -> Substring {
    let folded = page.lowercased()
    // If the lower case is longer than the upper case, positions differ. The error pages of servers are ASCII.
    let text = folded.utf8.count == page.utf8.count ? page : folded
    guard let tag = folded.firstRange(of: "<title"), let open = folded[tag.upperBound...].firstIndex(of: ">"),
      let end = folded[open...].firstRange(of: "</title")
    else { return "" }
    let (from, to) = (open.utf16Offset(in: folded) + 1, end.lowerBound.utf16Offset(in: folded))
    return text[String.Index(utf16Offset: from, in: text)..<String.Index(utf16Offset: to, in: text)]
  }

  /// The text with white space as single spaces, and without characters that control a terminal.
  private static func line(_ text: Substring) -> String {
    text.unicodeScalars.split { $0.properties.isWhitespace || isUnprintable($0) }
      .map { String($0) }.joined(separator: " ")
  }
}
