// The description of a request in logs and debuggers, without its secrets.

extension UploadRequest: CustomStringConvertible, CustomDebugStringConvertible, CustomReflectable {
  /// Method and URL, without user and password, and without the values of its query.
  public var description: String { "\(method) \(Self.withoutSecrets(url))" }

  /// The request without its secrets.
  public var debugDescription: String { "UploadRequest(\(description))" }

  /// For `dump` and debuggers. Tokens, field values and other possible secrets are omitted.
  public var customMirror: Mirror {
    Mirror(
      self,
      children: [
        "url": Self.withoutSecrets(url), "method": method, "fields": fields.all.map(\.rawName),
        "bearerToken": bearerToken == nil ? "none" : "given", "proxy": proxy.map(Self.withoutCredentials) ?? "none",
      ], displayStyle: .struct)
  }

  /// `url` in a form to display: without user and password, without its fragment, and without the values of its query,
  /// one of which may be a signature.
  package static func withoutSecrets(_ url: String) -> String {
    let url = withoutCredentials(url)
    guard let mark = url.firstIndex(where: { $0 == "?" || $0 == "#" }) else { return url }
    guard url[mark] == "?" else { return String(url[..<mark]) }
    let query = url[url.index(after: mark)...].prefix { $0 != "#" }
    let shown = query.split(separator: "&").map { $0.contains("=") ? $0.prefix { $0 != "=" } + "=..." : "..." }
    return url[...mark] + shown.joined(separator: "&")
  }

  /// `text` without the values of the queries of its URLs. A query has a `=`, and ends at a character that can follow a
  /// URL in a text, such as a quotation mark or a parenthesis.
  static func withoutQueryValues(_ text: String) -> String {
    var result = ""
    var rest = text[...]
    while let mark = rest.firstIndex(of: "?") {
      let query = rest[rest.index(after: mark)...].prefix { !$0.isWhitespace && !"\"'<>()`|\\^{}".contains($0) }
      let url = String(rest[mark..<query.endIndex])
      result += rest[..<mark] + (query.contains("=") ? withoutSecrets(url) : url)
      rest = rest[query.endIndex...]
    }
    return result + rest
  }

  /// `url` without the user and password in its authority (RFC 3986, section 3.2.1), to display.
  package static func withoutCredentials(_ url: String) -> String {
    // A missing scheme does not make a password less secret.
    let start = url.firstRange(of: "://")?.upperBound ?? url.startIndex
    let authority = url[start...].prefix { !"/?#".contains($0) }
    // The last one. curl treats the text before it as credentials even if that contains another one.
    guard let sign = authority.lastIndex(of: "@") else { return url }
    return String(url[..<start] + url[url.index(after: sign)...])
  }
}
