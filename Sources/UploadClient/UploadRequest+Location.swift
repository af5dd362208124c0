// The target of a server's `Location`, and the parts of a request that may be sent there.

internal import HTTPMessages

extension UploadRequest {
  /// The host that the URL names, as libcurl parses it: in lower case, an IPv4 address in its usual form, an IPv6
  /// address in brackets. Nil for an invalid URL.
  package var host: String? { ParsedURL(url)?.host }

  /// The target of a `Location` for this request: a reference, resolved against the request's URL (RFC 9110, section
  /// 10.2.2; RFC 3986, section 5), without its fragment.
  ///
  /// The result has the user and password of this request's URL if, and only if, it has the same origin. Credentials in
  /// a server's `Location` are never used (RFC 9110, section 4.2.4).
  ///
  /// - Returns: nil if it is empty, or not a reference to an `http` or `https` URL.
  package func resolving(location: String) -> String? { resolve(location)?.text }

  /// The same with the path and query of `location`, and the scheme, host and port of this request. It is for a server
  /// that uses a name for itself that does not work here, for example behind a proxy.
  ///
  /// - Returns: nil if it is empty, or not a reference to an `http` or `https` URL.
  package func keepingOrigin(ofLocation location: String) -> String? {
    guard let target = resolve(location), var result = ParsedURL(url) else { return nil }
    (result.path, result.query) = (target.path, target.query)
    return result.text
  }

  /// Scheme, host and port of a URL (RFC 6454, section 4) in one form, always with the port. Two URLs have the same
  /// origin if these are equal. Nil for anything but an `http` or `https` URL.
  package static func origin(of url: String) -> String? { ParsedURL(url)?.origin }

  /// This request for `url`, a result of ``resolving(location:)`` or ``keepingOrigin(ofLocation:)``.
  ///
  /// For the same origin, the whole request is kept. For another origin, everything that could disclose a secret is
  /// removed:
  ///
  /// - the bearer token, the netrc file (its `default`, or the same host on another port, would match), the client
  ///   certificate, and the user and password, except those in `url` itself;
  /// - all fields but those that describe the content or the upload. An `Authorization`, a `Cookie`, an `X-Api-Key` or
  ///   any other field for the first server is removed.
  ///
  /// The connection settings stay: proxy, address family, limits, trusted authorities. A unix socket is removed,
  /// because it belongs to the first server.
  package func directed(to url: String) -> UploadRequest {
    var request = self
    request.url = url
    // An unreadable URL has no origin.
    if let origin = Self.origin(of: self.url), origin == Self.origin(of: url) { return request }
    request.bearerToken = nil
    request.netrcFile = nil
    request.clientCertificate = nil
    request.clientKey = nil
    request.unixSocket = nil
    request.fields = request.fields.filter(Self.isAboutContent)
    return request
  }

  private static func isAboutContent(_ name: String) -> Bool {
    // RFC 9110, section 8; RFC 9530; draft-ietf-httpbis-resumable-upload; and our own fields.
    ["content-", "upload-", "stream-"].contains { name.hasPrefix($0) }
      || ["repr-digest", "want-repr-digest", "want-content-digest", "incremental", "accept", "user-agent"].contains(
        name)
  }

  private func resolve(_ location: String) -> ParsedURL? {
    guard !location.isEmpty, let base = ParsedURL(url), var target = ParsedURL(location, relativeTo: base) else {
      return nil
    }
    let isHome = target.origin == base.origin
    (target.user, target.password) = isHome ? (base.user, base.password) : (nil, nil)
    return target
  }
}
