// A sequence as a value: what is drawn from a seed, what is run, and what a shorter one is made of.

internal import PropertyTesting

/// Details of one request that do not decide what it is.
struct RequestDetail: Sendable {
  /// Bytes of content.
  var count = 0
  var isChunked = false
  var digest = Digest.none
  enum Digest: Sendable { case none, right, wrong }
  /// Where in the request, from 0 to 1, its client drops the connection; nil if it waits for the answer.
  var drop: Double?
  var dropsByReset = false
  /// How long its client waits between parts of it, in microseconds.
  var pauses: [Int] = []
  /// How far from the true offset an append begins.
  var misplacement = 0
  /// Bytes between the end of the stream and the beginning of what a creation brings.
  var hole = 0
  /// Whether a creation announces the length of the whole.
  var announcesLength = false
  /// Whether a creation is the whole upload.
  var completes = false
  /// The interop version of a creation and of all requests to that upload; nil for the RFC to come.
  var version: Int? = 8
  var isOnNewConnection = true
  /// Whether the other token's request has the bytes that are stored.
  var guessesRight = false
}

/// When the second request is sent.
enum Interleaving: Sendable {
  case afterFirst, beforeFirst
  /// Behind that part of the first one, from 0 to 1.
  case within(Double)
  /// On the connection of the first one.
  case pipelined
}

/// How a step's result is looked at.
enum Inspection: Sendable {
  /// HEAD, and an append at the offset that it announces.
  case headThenAppend
  case headOnly
  /// An append at the offset that the step's own answer announces.
  case appendAtAnnounced
}

/// One operation, and a request at the same time.
package struct ChaosStep: Sendable {
  package var operation: Operation
  package var second: Second
  package var issuer: Issuer
  var detail: RequestDetail
  var secondDetail: RequestDetail
  var interleaving: Interleaving
  var inspection: Inspection
  /// Bytes of the append that shows whether an announced offset holds.
  var probe: Int
  /// Whether the step may meet an upload that has ended.
  var takesEnded: Bool
  /// When an event strikes after the second request was begun, or how far from its deadline the request comes, in
  /// microseconds.
  var delay: Int
}

/// Some steps over the uploads and streams of two tokens.
package struct ChaosSequence: Sendable {
  package var seed: UInt64
  package var index: Int
  package var setting: ServerSetting
  package var steps: [ChaosStep]
  /// Whether quotas are counted to the byte at the end.
  var countsQuota: Bool
  /// The first of the repeated runs of one sequence has 0.
  package var copy = 0

  /// Which of the steps is the batch's event.
  var eventIndex: Int? { steps.firstIndex { !$0.operation.isRequest } }
  package var event: Operation? { eventIndex.map { steps[$0].operation } }

  /// The sequence of that index: the step that the cell asks for, with others before and behind it.
  package init(seed: UInt64, index: Int, cell: ChaosCell) {
    self.seed = seed
    self.index = index
    setting = cell.setting
    var random = SplitMix64(state: seed &+ UInt64(index) &* 0x9E37_79B9_7F4A_7C15)
    _ = random.next()
    steps = []
    // An event belongs to a batch, so it can only come once, and where its cell asks for it.
    // What is over when it comes has to outlive it as well.
    let earlier: [Operation] =
      cell.operation.isRequest
      ? [.append, .append, .create, .head] : [.append, .append, .create, .complete, .complete, .delete]
    for _ in 0..<Int.random(in: 0...2, using: &random) { steps.append(.draw(earlier, &random)) }
    var step = ChaosStep.draw([cell.operation], &random)
    (step.second, step.issuer) = (cell.second, cell.issuer)
    step.takesEnded = false
    steps.append(step)
    for _ in 0..<Int.random(in: 0...2, using: &random) {
      steps.append(.draw([.append, .append, .complete, .head, .create, .delete], &random))
    }
    countsQuota = random.chance(10)
  }
}

extension ChaosStep {
  fileprivate static func draw(_ operations: [Operation], _ random: inout SplitMix64) -> ChaosStep {
    var step = ChaosStep(
      operation: operations.randomElement(using: &random) ?? .append, second: .none, issuer: .sameToken,
      detail: .draw(&random), secondDetail: .draw(&random), interleaving: .afterFirst,
      inspection: [.headThenAppend, .headThenAppend, .headOnly, .appendAtAnnounced].randomElement(using: &random)
        ?? .headOnly,
      probe: random.size(upTo: 3000), takesEnded: random.chance(15), delay: Int.random(in: 0...3000, using: &random))
    if random.chance(40) {
      step.second = Second.allCases.randomElement(using: &random) ?? .none
      step.issuer = step.second != .none && random.chance(50) ? .otherToken : .sameToken
    }
    step.interleaving =
      switch Int.random(in: 0..<6, using: &random) {
      case 0: .beforeFirst
      case 1, 2: .within(Double.random(in: 0...1, using: &random))
      case 3: .pipelined
      default: .afterFirst
      }
    // A request that is dropped is followed by nothing on its connection.
    if case .pipelined = step.interleaving { (step.detail.drop, step.secondDetail.drop) = (nil, nil) }
    return step
  }
}

extension RequestDetail {
  fileprivate static func draw(_ random: inout SplitMix64) -> RequestDetail {
    var detail = RequestDetail()
    switch Int.random(in: 0..<100, using: &random) {
    case 0..<8: detail.count = 0
    case 8..<85: detail.count = random.size(upTo: 6000)
    case 85..<98: detail.count = random.size(upTo: 70_000)
    default: detail.count = random.size(upTo: 300_000)
    }
    detail.isChunked = random.chance(50)
    if random.chance(10) { detail.digest = random.chance(60) ? .right : .wrong }
    if random.chance(15) {
      detail.drop = Double.random(in: 0...1, using: &random)
      detail.dropsByReset = random.chance(50)
    }
    if random.chance(6) { detail.misplacement = Int.random(in: -3000...3000, using: &random) }
    if random.chance(15) { detail.hole = random.size(upTo: 2000) }
    detail.announcesLength = random.chance(40)
    detail.completes = random.chance(15)
    if random.chance(20) {
      detail.pauses = (0..<Int.random(in: 1...4, using: &random)).map { _ in Int.random(in: 0...1500, using: &random) }
    }
    detail.version = [3, 4, 5, 6, 7, 8, 8, 8, 8, nil].randomElement(using: &random) ?? 8
    detail.isOnNewConnection = random.chance(50)
    detail.guessesRight = random.chance(50)
    return detail
  }
}
