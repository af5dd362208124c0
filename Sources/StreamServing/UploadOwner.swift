// Who a request is from, as far as uploads care.

/// The creator of an upload: a credential, or the peer's address where the server asks for none.
package struct UploadOwner: Hashable, Sendable {
  /// What identifies the credential, and not the credential itself; nil where there is none.
  package var credential: [UInt8]?
  /// The peer without its port: `192.0.2.7`, `[2001:db8::7]`, `unix`.
  package var address: String

  package init(credential: [UInt8]? = nil, address: String) { (self.credential, self.address) = (credential, address) }

  /// Owners are the same when their credentials are; addresses count where there are none.
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
