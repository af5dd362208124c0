// The path of a connection to its first request: through a proxy's CONNECT, through TLS, and with which token.

import EventLoops
import NetworkTesting

/// The certificates of all cases of a run, created once.
package final class CaseIdentity: Sendable {
  private let directory: TemporaryDirectory
  let trusted: TLSContext
  /// A certificate of an authority that no client trusts.
  let foreign: TLSContext
  let authority: String
  /// The host behind a proxy.
  static let host = "sluice.test"

  package init() throws {
    directory = try TemporaryDirectory()
    try TestCertificates.make(in: directory, hosts: [Self.host])
    authority = "\(directory.path)/ca.pem"
    trusted = try TLSContext(certificate: "\(directory.path)/server.pem", key: "\(directory.path)/server.key")
    foreign = try TLSContext(certificate: "\(directory.path)/foreign.pem", key: "\(directory.path)/foreign.key")
  }
}

extension CaseServer {
  /// Credentials that must not appear in any report. No option has such words in its name.
  static let secrets = ["pa55word", tokenPrefix]
  static let tokenPrefix = "t0ken-"

  /// The URL of the stream.
  var url: String {
    switch plan.cell.route {
    case .direct: "http://127.0.0.1:\(port)"
    case .tls: "https://127.0.0.1:\(port)"
    case .proxy: "http://\(CaseIdentity.host)"
    case .tunnel: "https://\(CaseIdentity.host)"
    }
  }

  var proxy: String? {
    [.proxy, .tunnel].contains(plan.cell.route) ? "http://user:pa55word@127.0.0.1:\(port)" : nil
  }

  /// The token that the client currently finds.
  var token: String { state.withLock { "\(Self.tokenPrefix)\($0.clientToken)" } }

  /// Prepares a connection for its first request.
  func establish(_ connection: ServerConnection) throws {
    if plan.cell.route == .tunnel {
      let head = try connection.head()
      guard head.line.hasPrefix("CONNECT \(CaseIdentity.host):443 ") else {
        try connection.respond("502 Bad Gateway")
        throw TestFailure("no way to \(head.line)")
      }
      if let odd = takeRefusal(ofTunnel: true), case .refusal(.tunnel(let status)) = odd.change {
        note("CONNECT → \(status)")
        try connection.respond("\(status) No")
        throw TestFailure("refused")
      }
      try connection.send("HTTP/1.1 200 Connection established\r\n\r\n")
    }
    guard plan.cell.route.isSecure else { return }
    let isForeign = takeRefusal(ofTunnel: false) != nil
    if isForeign { note("TLS → a certificate that is not trusted") }
    try connection.startTLS(isForeign ? identity.foreign : identity.trusted)
  }

  /// The refusal that is due for a new connection.
  private func takeRefusal(ofTunnel: Bool) -> OddReply? {
    state.withLock { state in
      guard let due = state.dueRefusal, due.count > 0 else { return nil }
      if case .refusal(.tunnel) = due.odd.change { if !ofTunnel { return nil } } else if ofTunnel { return nil }
      state.dueRefusal?.count -= 1
      state.given.append((due.odd, nil, "CONNECT"))
      return due.odd
    }
  }

  /// The consequences of a refusal that was given as an answer to a request.
  func begin(_ odd: OddReply) {
    guard case .refusal(let refusal) = odd.change else { return }
    state.withLock { state in
      switch refusal {
      case .status: break
      case .token(_, let isLate):
        state.validToken += 1
        if !isLate { state.clientToken = state.validToken }
      case .certificate, .tunnel:
        state.dueRefusal = (odd, plan.isPermanent ? .max : 1 + plan.index % 3)
      }
    }
  }

  /// The answer to a request with an expired token; nil for a valid one.
  func refusal(of request: WireRequest, _ state: inout State) -> OddReply? {
    guard state.validToken > 0, request.head["Authorization"] != "Bearer \(Self.tokenPrefix)\(state.validToken)" else {
      return nil
    }
    state.staleRequests += 1
    if state.staleRequests >= 2, !plan.isPermanent {
      (state.clientToken, state.staleRequests) = (state.validToken, 0)
    }
    var odd = OddReply(family: .refusal, change: .refusal(.status(401)))
    odd.keeps = false
    return odd
  }
}
