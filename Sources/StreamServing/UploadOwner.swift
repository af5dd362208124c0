// Identifies the sender of a request, for uploads.

/// The creator of an upload: a credential, or the peer's address if the server requires no credential.
package struct UploadOwner: Hashable, Sendable {
  /// Identifies the credential without containing it; nil if there is none.
  package var credential: [UInt8]?
  /// The peer without its port: `192.0.2.7`, `[2001:db8::7]`, `unix`.
  package var address: String

  package init(credential: [UInt8]? = nil, address: String) { (self.credential, self.address) = (credential, address) }

  /// Owners are equal if their credentials are. Without credentials, their addresses are compared.
  package static func == (a: UploadOwner, b: UploadOwner) -> Bool {
    a.credential == b.credential && (a.credential != nil || a.address == b.address)
  }

  package func hash(into hasher: inout Hasher) {
    if let credential { hasher.combine(credential) } else { hasher.combine(address) }
  }

  package static func address(of peer: String) -> String {
    guard let colon = peer.lastIndex(of: ":"), peer[peer.index(after: colon)...].allSatisfy(\.isNumber) else {
      return peer
    }
    return String(peer[..<colon])
  }
}
