// The server of one case: a good one for resumable uploads or plain requests, except for the odd answers of the case.

import EventLoops
import Glibc
import NetworkTesting

/// One thread for each connection. The stored bytes and the requests are kept for the judgement.
final class CaseServer: Sendable {
  struct State {
    var stored = StoredStream()
    var log: [String] = []
    /// How many odd answers have begun, and the statuses and kinds that were given.
    var oddCount = 0
    var given: [(odd: OddReply, head: ReplyHead?, method: String)] = []
    var hasBegun = false
    var hasCut = false
    /// What the client may conclude from the answers so far.
    var claims = Claims()
    /// Where the newest upload resource was to begin, whether or not it exists.
    var newestBase: UInt64 = 0
    /// The required token, and the one that the client finds.
    var validToken = 0
    var clientToken = 0 { didSet { writeToken() } }
    /// The client's token file, if it is a process.
    var tokenFile: String?
    /// Requests with an older token.
    var staleRequests = 0
    /// The refusal of the next connections.
    var dueRefusal: (odd: OddReply, count: Int)?
    var appends = 0
    var requests = 0
    /// Requests whose bytes are stored.
    var progress = 0
    var received = 0
    var connections: [ServerConnection] = []
    var isOver = false
    /// Whether any bytes that TCP has acknowledged were not read.
    var leftUnread = false

    fileprivate func writeToken() {
      guard let tokenFile else { return }
      let descriptor = open(tokenFile, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
      let bytes = Array("\(CaseServer.tokenPrefix)\(clientToken)\n".utf8)
      _ = write(descriptor, bytes, bytes.count)
      Glibc.close(descriptor)
    }
  }

  let state = Lock(State())
  let plan: AnswerCase
  let identity: CaseIdentity
  private let listener: Lock<ScriptedServer?> = Lock(nil)
  let port: UInt16

  init(_ plan: AnswerCase, _ identity: CaseIdentity, tokenFile: String? = nil) throws {
    (self.plan, self.identity) = (plan, identity)
    state.withLock { state in
      state.tokenFile = tokenFile
      state.clientToken = 0
    }
    let serve = Lock<(@Sendable (ServerConnection) throws -> Void)?>(nil)
    let started = try ScriptedServer { connection, _ in try serve.withLock { $0 }?(connection) }
    port = started.port
    listener.withLock { $0 = started }
    serve.withLock { $0 = { [weak self] in try self?.serve($0) } }
  }

  /// Ends all connections.
  func close() {
    listener.withLock { listener in
      listener?.close()
      listener = nil
    }
    let connections = state.withLock { state in
      state.isOver = true
      defer { state.connections = [] }
      return state.connections
    }
    for connection in connections { connection.breakOff() }
  }

  /// Whether all odd answers have been given.
  var isSpent: Bool { state.withLock { $0.oddCount >= plan.oddCount } }
  var oddCount: Int { state.withLock { $0.oddCount } }

  // MARK: Connections

  private func serve(_ connection: ServerConnection) throws {
    let isOver = state.withLock { state in
      state.connections.append(connection)
      return state.isOver
    }
    if isOver { return }
    try establish(connection)
    let wire: any AnswerWire = plan.usesHTTP2 ? try HTTP2Wire(connection) : HTTP1Wire(connection)
    while true {
      let request = try wire.nextRequest()
      do {
        let goesOn = try Exchange(server: self, wire: wire, request: request).run()
        if !goesOn { return }
      } catch {
        // An aborted request does not affect HTTP/2's connection.
        guard plan.usesHTTP2 else { throw error }
      }
    }
  }

  /// The odd answer to a request; nil for the proper one.
  func conduct(_ request: WireRequest, isPlain: Bool) -> (odd: OddReply?, cuts: Bool) {
    state.withLock { state in
      state.requests += 1
      if let refusal = refusal(of: request, &state) { return (refusal, false) }
      let appends = state.appends
      if request.method == "PATCH" { state.appends += 1 }
      let isCreation = request.isCreation || isPlain
      let isLast = request.completes || isPlain
      let isPhase =
        switch plan.cell.phase {
        case .discovery: request.method == "OPTIONS"
        case .creation: isCreation
        case .firstAppend: request.method == "PATCH" && (appends == 0 || state.hasBegun)
        case .running: request.method == "PATCH" && appends > 0 || isPlain || plan.cell.source == .put && isCreation
        case .rollOver: request.method == "PATCH" && appends > 1 && !request.completes
        case .head: request.method == "HEAD" || isPlain && state.hasCut
        case .final: isLast
        }
      let isCut =
        plan.cutsCreation
        ? isCreation : plan.cell.phase == .head && (request.method == "PATCH" && appends > 0 || isLast)
      if isCut, !state.hasCut {
        state.hasCut = true
        return (nil, true)
      }
      guard state.oddCount < plan.oddCount, isPhase || state.hasBegun && plan.strikesAll else { return (nil, false) }
      state.hasBegun = true
      defer { state.oddCount += 1 }
      let odd = plan.odd[state.oddCount % plan.odd.count]
      return (odd, false)
    }
  }

  func note(_ line: @autoclosure () -> String) {
    state.withLock { if $0.log.count < 400 { $0.log.append(line()) } }
  }
}
