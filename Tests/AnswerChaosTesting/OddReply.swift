// Wrong answers of a server.

import PropertyTesting

/// The head of a response, and its content.
struct ReplyHead: Sendable {
  var status: Int
  var fields: [(name: String, value: String)]
  var body: String = ""

  init(_ status: Int, _ fields: [(name: String, value: String)] = [], body: String = "") {
    (self.status, self.fields, self.body) = (status, fields, body)
  }

  func value(_ name: String) -> String? { fields.first { $0.name.lowercased() == name.lowercased() }?.value }
}

/// An odd answer, as a change of the proper one.
struct OddReply: Sendable {
  enum Change: Sendable {
    case none
    case status(Int, fields: [(name: String, value: String)], body: String)
    case without(String)
    /// Twice: with this other value, or with the same.
    case doubled(String, other: String?)
    case set(String, String)
    case interims([ReplyHead])
    /// 104 after the final response.
    case interimAfter(ReplyHead)
    case garbage([UInt8])
    case nothing
    case refusal(Refusal)
  }

  /// Why the client is refused.
  enum Refusal: Sendable {
    case status(Int)
    /// Its token is no longer valid. The new one exists at once, or after two more requests.
    case token(Int, isLate: Bool)
    /// The next connections have an untrusted certificate.
    case certificate
    /// The proxy refuses the next tunnels.
    case tunnel(Int)
  }

  enum Timing: Sendable, Equatable {
    case beforeContent
    /// After this number of content bytes.
    case inContent(Int)
    case afterContent
    /// After the content, and after the client's timeout.
    case late
  }

  enum End: Sendable, Equatable {
    case goesOn, fin, reset, silence
    /// HTTP/2: RST_STREAM or GOAWAY with this code.
    case streamReset(UInt8)
    case goAway(UInt8)
  }

  /// The bytes after the head, which do not end before the client ends the connection.
  enum Tail: Sendable, CaseIterable {
    case silence, drips, floods
  }

  var family: AnswerFamily
  var change: Change
  var timing = Timing.afterContent
  var end = End.goesOn
  /// The share of the head that is sent; nil for all.
  var cut: Double?
  /// An endless body.
  var tail: Tail?
  /// Whether the server keeps the content that it has read.
  var keeps = true

  /// Draws one for a cell.
  static func draw(_ cell: AnswerCell, status: Int, _ random: inout SplitMix64) -> OddReply {
    var odd = OddReply(family: cell.family, change: .none)
    if cell.phase == .running { odd.timing = .inContent(random.size(upTo: 3000)) }
    switch cell.family {
    case .status:
      odd.change = .status(
        status, fields: random.chance(50) ? AbsurdFields.someUnrelated(&random) : [],
        body: random.chance(40) ? "<html><title>We are sorry</title>\u{1B}]0;x\u{7}</html>" : "")
      if random.chance(20) { odd.timing = .beforeContent }
      // A replacement of the server keeps nothing. After an interim response the server itself answers, and its 2xx
      // would acknowledge bytes that it has not stored.
      odd.keeps = status < 300 || random.chance(50)
    case .missingField:
      odd.change = .without(AbsurdFields.own.randomElement(using: &random) ?? "Upload-Offset")
    case .doubledField:
      let name = AbsurdFields.own.randomElement(using: &random) ?? "Upload-Offset"
      odd.change = .doubled(name, other: random.chance(50) ? nil : AbsurdFields.value(of: name, &random))
    case .absurdField:
      let name = AbsurdFields.all.randomElement(using: &random) ?? "Upload-Offset"
      odd.change = .set(name, AbsurdFields.value(of: name, &random))
    case .cut:
      odd.cut = Double.random(in: 0..<1, using: &random)
      if random.chance(30) { odd.change = .status(status, fields: [], body: "") }
      odd.end = [.fin, .fin, .reset, .silence].randomElement(using: &random) ?? .fin
      odd.keeps = random.chance(50)
    case .early:
      odd.timing = random.chance(50) ? .beforeContent : .inContent(random.size(upTo: 3000))
      odd.end = [.goesOn, .fin, .silence, .reset].randomElement(using: &random) ?? .fin
    case .late:
      odd.timing = .late
      odd.keeps = random.chance(70)
    case .never:
      odd.change = .nothing
      odd.timing =
        [.beforeContent, .inContent(random.size(upTo: 3000)), .afterContent].randomElement(using: &random)
        ?? .afterContent
      odd.end = .silence
      odd.keeps = random.chance(70)
    case .interim:
      if random.chance(25) {
        odd.change = .interimAfter(AbsurdFields.interim(&random))
      } else {
        odd.change = .interims((0..<random.size(upTo: 4)).map { _ in AbsurdFields.interim(&random) })
      }
      if random.chance(30) { odd.timing = .inContent(random.size(upTo: 3000)) }
      if random.chance(20) { odd.end = [.fin, .reset, .silence].randomElement(using: &random) ?? .fin }
    case .broken:
      odd.change = .nothing
      odd.timing =
        [.beforeContent, .inContent(random.size(upTo: 3000)), .afterContent].randomElement(using: &random)
        ?? .afterContent
      odd.end = random.chance(50) ? .fin : .reset
      if cell.wire == .http2, random.chance(60) {
        let code = UInt8(random.size(upTo: 14) - 1)
        odd.end = random.chance(60) ? .streamReset(code) : .goAway(code)
      }
      odd.keeps = random.chance(70)
    case .garbage:
      odd.change = .garbage(Garbage.draw(cell.wire == .http2, &random))
      odd.timing = random.chance(40) ? .beforeContent : odd.timing
      odd.end = [.fin, .reset, .silence, .goesOn].randomElement(using: &random) ?? .fin
      odd.keeps = random.chance(50)
    case .endlessBody:
      odd.timing = .afterContent
      odd.tail = Tail.allCases.randomElement(using: &random)
    case .refusal:
      let refusal = Refusal.draw(cell.route, &random)
      odd.change = .refusal(refusal)
      odd.keeps = false
      if random.chance(20) { odd.timing = .beforeContent }
      switch refusal {
      case .certificate, .tunnel: odd.end = .reset
      case .status, .token: break
      }
    }
    return odd
  }

  /// The resulting final response, if it is one.
  func head(of proper: ReplyHead) -> ReplyHead? {
    var head = proper
    if tail != nil, head.status == 204 { head.status = 200 }
    switch change {
    case .none, .interims, .interimAfter: return head
    case .status(let status, let fields, let body):
      // A 1xx is not a final response, so the proper one follows.
      guard status >= 200 else { return head }
      return ReplyHead(status, fields, body: [204, 304].contains(status) ? "" : body)
    case .without(let name): head.fields.removeAll { $0.name == name }
    case .doubled(let name, let other):
      if let index = head.fields.firstIndex(where: { $0.name == name }) {
        head.fields.insert((name, other ?? head.fields[index].value), at: other == nil ? index : index + 1)
      } else {
        let value = other ?? "1"
        head.fields += [(name, value), (name, value)]
      }
    case .set(let name, let value):
      head.fields.removeAll { $0.name == name }
      head.fields.append((name, value))
    case .refusal(.status(let status)), .refusal(.token(let status, _)): return ReplyHead(status)
    case .garbage, .nothing, .refusal: return nil
    }
    return head
  }

  var isCertificate: Bool { if case .refusal(.certificate) = change { true } else { false } }

  var description: String {
    var words = "\(family.rawValue) \(change)"
    if words.count > 300 { words = String(words.prefix(300)) + "…" }
    return
      "\(words), \(timing), \(end)\(cut.map { ", cut at \(Int($0 * 100)) %" } ?? "")\(tail.map { ", body: \($0)" } ?? "")\(keeps ? "" : ", keeps nothing")"
  }
}

extension OddReply.Refusal {
  static func draw(_ route: Route, _ random: inout SplitMix64) -> OddReply.Refusal {
    let status = [401, 403, 407].randomElement(using: &random) ?? 401
    switch Int.random(in: 0..<100, using: &random) {
    case 0..<30 where route == .tunnel: return .tunnel(random.chance(70) ? status : 503)
    case 30..<70 where route.isSecure: return .certificate
    case 0..<50: return .status(status)
    // A 407 concerns the proxy's credentials.
    default: return .token(random.chance(50) ? 401 : 403, isLate: random.chance(50))
    }
  }
}
