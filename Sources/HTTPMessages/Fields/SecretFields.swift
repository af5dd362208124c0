// The fields that carry credentials, which must never be written to a disk.

package enum SecretFields {
  /// A field whose name contains one of these is such a field. Examples are `Authorization`, `Proxy-Authorization`,
  /// `Set-Cookie`, `X-Api-Key`, `Private-Token`, `X-Auth-Request-Email`, `CF-Access-Client-Secret` and `X-Session-ID`.
  private static let parts = [
    "auth", "api-key", "apikey", "access-key", "token", "secret", "password", "passwd", "credential", "session",
    "signature", "jwt", "cookie",
  ]

  /// Whether a field of that name may carry a credential. After a wrong guess, a handler lacks a field after a restart.
  package static func contains(_ name: String) -> Bool {
    let name = name.lowercasedASCII
    return parts.contains { name.contains($0) }
  }
}
