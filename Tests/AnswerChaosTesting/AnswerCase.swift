// One case of the matrix, which follows completely from the seed and its number.

import PropertyTesting

/// A stream, and the faults in its answers.
package struct AnswerCase: Sendable {
  enum Mode: Sendable, Equatable {
    /// This number of odd answers, followed by a good server.
    case repaired(Int)
    /// Odd answers for longer than any client waits, with a time to give up.
    case givesUp
    /// The same, but after this number of odd answers the stream is cancelled.
    case cancelled(after: Int)
    /// The same, but the stream is asked to finish, and has a time to give up.
    case finished(after: Int)
  }

  package let index: Int
  package let cell: AnswerCell
  let mode: Mode
  let odd: [OddReply]
  /// Whether any request may get an odd answer once they have begun, or only those of the phase.
  let strikesAll: Bool
  /// How many bytes precede the last ones, which wait for the odd answers.
  let size: Int
  let bufferSize: Int
  let habits: ServerHabits
  /// How much of the stream's first content is read before the cut that the phase `head` needs.
  let cutAfter: Int
  let cutsByReset: Bool
  /// Whether the first creation is cut before the server has answered.
  let cutsCreation: Bool
  let method: String
  /// Plain streams only: whether to use HTTP/2.
  let usesHTTP2: Bool
  /// Plain streams only: whether the client sends OPTIONS first.
  let asks: Bool
  /// Whether a plain stream runs until its server counts as having acknowledged.
  let isLong: Bool
  let responseLimit: Duration
  /// The time after which a refusal ends the stream; nil for the client's default.
  let refusalLimit: Duration?

  package init(seed: UInt64, index: Int) {
    var random = SplitMix64(state: seed &+ UInt64(index) &* 0x9E37_79B9_7F4A_7C15)
    _ = random.next()
    let (cell, status) = CasePlan.plan(index)
    self.index = index
    self.cell = cell
    let count = random.size(upTo: 6)
    let draw = random.size(upTo: 100)
    mode =
      switch Int.random(in: 0..<100, using: &random) {
      case 0..<72: .repaired(random.chance(50) ? 1 : count)
      case 72..<86: .givesUp
      case 86..<94: .cancelled(after: 1 + draw % 6)
      default: .finished(after: 1 + draw % 6)
      }
    odd = (0..<max(1, count)).map { number in
      OddReply.draw(cell, status: number == 0 ? status : 200 + random.size(upTo: 399), &random)
    }
    strikesAll = random.chance(40)
    let isFile = cell.source == .put
    // A file is sent with its creation, unless it is too long for that.
    let isLarge = isFile && cell.phase == .discovery && random.chance(10)
    let sizes = isFile && cell.phase == .rollOver ? [6000, 20_000, 60_000] : [1, 700, 6000, 20_000, 60_000]
    let size = isLarge ? 4_200_000 : sizes.randomElement(using: &random) ?? 6000
    self.size = size
    bufferSize = cell.source == .mic ? (random.chance(25) ? 8192 : 65_536) : (random.chance(50) ? 8192 : 32_768)
    habits = ServerHabits(&random, Self.isAppended(cell) ? size : nil)
    cutAfter = random.size(upTo: 4000)
    // Or unless its creation is interrupted. Then the server is asked, and the file follows in appends.
    cutsCreation =
      isFile && !isLarge && (cell.phase == .discovery || Self.isAppended(cell) && !habits.announces)
    cutsByReset = random.chance(50)
    method = cell.source == .put || cell.wire == .plain && random.chance(25) ? "PUT" : "POST"
    usesHTTP2 = cell.wire == .http2 || cell.wire == .plain && cell.route != .proxy && random.chance(25)
    asks = cell.phase == .discovery || random.chance(50)
    refusalLimit =
      if case .repaired = mode { cell.family == .refusal && random.chance(30) ? nil : .seconds(600) } else {
        .milliseconds(400)
      }
    isLong = cell.wire == .plain && cell.phase == .running && cell.source == .mic && random.chance(10)
    responseLimit = .milliseconds(random.chance(80) ? 200 : 400)
  }

  /// Whether it is a file that must be sent in several appends.
  private static func isAppended(_ cell: AnswerCell) -> Bool {
    cell.source == .put && cell.wire != .plain && [.firstAppend, .rollOver].contains(cell.phase)
  }

  var isPermanent: Bool { if case .repaired = mode { false } else { true } }
  var oddCount: Int { if case .repaired(let count) = mode { count } else { 150 } }

  package var description: String {
    "case \(index): \(cell), \(mode), \(method), \(size) bytes\(cell.source == .put ? "" : ", buffer \(bufferSize)"), "
      + "\(strikesAll ? "any request is struck" : "only the phase's requests are struck"), \(habits)"
  }
}

/// The behaviour of the good server for a whole case.
struct ServerHabits: Sendable, CustomStringConvertible {
  var announces: Bool
  /// Sends a 104 after this number of bytes.
  var progress: Int?
  var tellsOffset: Bool
  var joinsParts: Bool
  /// The maximum size of one append in bytes.
  var appendLimit: Int?

  /// - Parameter size: the size of a file that must be sent in several appends.
  init(_ random: inout SplitMix64, _ size: Int?) {
    announces = random.chance(80)
    appendLimit = size.map { max(1000, $0 / (4 + random.size(upTo: 4))) }
    progress = random.chance(60) ? 500 + random.size(upTo: 3000) : nil
    tellsOffset = random.chance(50)
    joinsParts = random.chance(60)
  }

  /// The value of `Upload-Limit`.
  var limits: String { appendLimit.map { "max-append-size=\($0)" } ?? "min-size=0" }

  var description: String {
    "server: \(announces ? "104 with Location" : "no 104"), progress \(progress.map(String.init) ?? "never"), "
      + "\(tellsOffset ? "tells offsets" : "tells no offsets"), \(joinsParts ? "joins parts" : "joins nothing")\(appendLimit.map { ", appends of at most \($0)" } ?? "")"
  }
}
