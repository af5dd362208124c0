// How a request looks in logs and debuggers: what it is for, and none of its secrets.

extension UploadRequest: CustomStringConvertible, CustomDebugStringConvertible, CustomReflectable {
  /// Method and URL without user and password.
  public var description: String { "\(method) \(Self.withoutCredentials(url))" }

  /// The request without its secrets.
  public var debugDescription: String { "UploadRequest(\(description))" }

  /// For `dump` and debuggers: tokens, field values and whatever else may be secret are left out.
  public var customMirror: Mirror {
    Mirror(
      self,
      children: [
        "url": Self.withoutCredentials(url), "method": method, "fields": fields.map(\.name),
        "bearerToken": bearerToken == nil ? "none" : "given", "proxy": proxy.map(Self.withoutCredentials) ?? "none",
      ], displayStyle: .struct)
  }

  /// `url` without the user and password in its authority (RFC 3986, section 3.2.1), to be shown to people.
  package static func withoutCredentials(_ url: String) -> String {
    // One that was forgotten does not make a password less of a secret.
    let start = url.firstRange(of: "://")?.upperBound ?? url.startIndex
    let authority = url[start...].prefix { !"/?#".contains($0) }
    // The last one: curl takes what is before it as credentials even if it has another.
    guard let sign = authority.lastIndex(of: "@") else { return url }
    return String(url[..<start] + url[url.index(after: sign)...])
  }
}
