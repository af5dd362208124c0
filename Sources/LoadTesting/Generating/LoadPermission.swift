// The hosts that a load test may load. A tool that opens ten thousand connections requires permission for any machine
// but its own.

internal import UploadClient

enum LoadPermission {
  /// - Throws: ``LoadError/notPermitted(host:)`` unless the request and its proxy address this machine or a permitted
  ///   host.
  static func check(_ request: UploadRequest, permitted: [String]) throws(LoadError) {
    guard request.unixSocket == nil else { return }
    try check(host: request.host, of: request.description, permitted)
    // A proxy is loaded as much as the server behind it.
    guard let proxy = request.proxy, !proxy.isEmpty else { return }
    try check(host: UploadRequest.host(ofProxy: proxy), of: UploadRequest.withoutCredentials(proxy), permitted)
  }

  private static func check(host: String?, of url: String, _ permitted: [String]) throws(LoadError) {
    guard let host else { throw .invalid("\(url): invalid URL") }
    guard !isLoopback(host), !permitted.contains(where: { host == $0.lowercased() }) else { return }
    throw .notPermitted(host: host)
  }

  /// Whether a host, in libcurl's form, is this machine regardless of name servers (RFC 6761, section 6.3; RFC 1122,
  /// section 3.2.1.3; RFC 4291, section 2.5.3).
  static func isLoopback(_ host: String) -> Bool {
    let parts = host.split(separator: ".", omittingEmptySubsequences: false)
    return host == "localhost" || host == "[::1]"
      || (parts.count == 4 && parts[0] == "127" && parts.allSatisfy { UInt8($0) != nil })
  }
}
