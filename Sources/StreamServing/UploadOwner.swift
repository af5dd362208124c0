// Identifies the sender of a request, for uploads.

internal import Glibc

/// The creator of an upload: a credential, or the peer's address if the server requires no credential.
package struct UploadOwner: Hashable, Sendable {
  /// Identifies the credential without containing it; nil if there is none.
  package var credential: [UInt8]?
  /// The peer without its port: `192.0.2.7`, `[2001:db8:1:2::]/64`, `unix`.
  package let address: String

  /// - Parameter address: the peer with or without its port, or an earlier ``address``.
  package init(credential: [UInt8]? = nil, address: String) {
    (self.credential, self.address) = (credential, Self.client(at: address))
  }

  /// Owners are equal if their credentials are. Without credentials, their addresses are compared.
  package static func == (a: UploadOwner, b: UploadOwner) -> Bool {
    a.credential == b.credential && (a.credential != nil || a.address == b.address)
  }

  package func hash(into hasher: inout Hasher) {
    if let credential { hasher.combine(credential) } else { hasher.combine(address) }
  }

  private static func client(at peer: String) -> String {
    guard let colon = peer.lastIndex(of: ":"), peer[peer.index(after: colon)...].allSatisfy(\.isNumber) else {
      return network(of: peer)
    }
    return network(of: String(peer[..<colon]))
  }

  /// The part of an IPv6 address that its owner cannot choose. A provider gives each customer at least the addresses
  /// with the same first 64 bits (RFC 6177). A link-local address has a zone, and stays as it is.
  private static func network(of host: String) -> String {
    guard host.hasPrefix("["), host.hasSuffix("]") else { return host }
    var octets = [UInt8](repeating: 0, count: 16)
    guard inet_pton(AF_INET6, String(host.dropFirst().dropLast()), &octets) == 1 else { return host }
    // ::ffff:192.0.2.7 is an IPv4 client of a listener for both families (RFC 4291, section 2.5.5.2).
    if octets[..<10].allSatisfy({ $0 == 0 }), octets[10] == 0xFF, octets[11] == 0xFF {
      return octets[12...].map { "\($0)" }.joined(separator: ".")
    }
    // ::1 does not belong to a network.
    let isNetwork = octets[..<8].contains { $0 != 0 }
    if isNetwork { octets.replaceSubrange(8..., with: repeatElement(0, count: 8)) }
    var text = [CChar](repeating: 0, count: Int(INET6_ADDRSTRLEN))
    let shortest = text.withUnsafeMutableBufferPointer { buffer in
      inet_ntop(AF_INET6, octets, buffer.baseAddress, socklen_t(buffer.count)).map { String(cString: $0) }
    }
    return shortest.map { isNetwork ? "[\($0)]/64" : "[\($0)]" } ?? host
  }
}
