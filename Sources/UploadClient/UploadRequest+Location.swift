// Where a server's `Location` leads, and what may go there.

extension UploadRequest {
  /// The host that the URL names, as libcurl reads it: in lower case, an IPv4 address in its usual form, an IPv6
  /// address in brackets; nil for what is no URL.
  package var host: String? { ParsedURL(url)?.host }

  /// What a `Location` means for this request: a reference, resolved against the request's URL (RFC 9110, section
  /// 10.2.2; RFC 3986, section 5), without its fragment.
  ///
  /// User and password of this request's URL are in the result if, and only if, it is on the same origin. Those
  /// that the server writes into a `Location` are never used (RFC 9110, section 4.2.4).
  ///
  /// - Returns: nil if it is empty, or no reference to an `http` or `https` URL.
  package func resolving(location: String) -> String? { resolve(location)?.text }

  /// The same with path and query of `location`, and scheme, host and port of this request: for a server that names
  /// itself by a name that is of no use here, behind a proxy for one.
  ///
  /// - Returns: nil if it is empty, or no reference to an `http` or `https` URL.
  package func keepingOrigin(ofLocation location: String) -> String? {
    guard let target = resolve(location), var result = ParsedURL(url) else { return nil }
    (result.path, result.query) = (target.path, target.query)
    return result.text
  }

  /// Scheme, host and port of a URL (RFC 6454, section 4) in one form, always with the port: two URLs have the same
  /// origin if these are equal. Nil for what is no `http` or `https` URL.
  package static func origin(of url: String) -> String? { ParsedURL(url)?.origin }

  /// This request for `url`, a URL that ``resolving(location:)`` or ``keepingOrigin(ofLocation:)`` gave.
  ///
  /// On the same origin all of it goes along. On another one nothing does that could tell that server a secret:
  ///
  /// - no bearer token, no netrc file (its `default`, or the same host on another port, would match), no client
  ///   certificate, no user and password but those that `url` itself has;
  /// - of the fields only those that describe the content or the upload: an `Authorization`, a `Cookie`, an `X-Api-Key`
  ///   or whatever else was meant for the first server stays behind.
  ///
  /// The way there stays: proxy, address family, limits, trusted authorities. A unix socket does not: it is the first
  /// server's.
  package func directed(to url: String) -> UploadRequest {
    var request = self
    request.url = url
    // An unreadable one is of no origin.
    if let origin = Self.origin(of: self.url), origin == Self.origin(of: url) { return request }
    request.bearerToken = nil
    request.netrcFile = nil
    request.clientCertificate = nil
    request.clientKey = nil
    request.unixSocket = nil
    request.fields.removeAll { !Self.isAboutContent($0.name.lowercased()) }
    return request
  }

  private static func isAboutContent(_ name: String) -> Bool {
    // RFC 9110, section 8; RFC 9530; draft-ietf-httpbis-resumable-upload; our own.
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
