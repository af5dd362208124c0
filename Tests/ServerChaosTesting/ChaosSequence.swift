// A sequence as a value, which is drawn from a seed, run, and shortened after a failure.

internal import PropertyTesting

/// Details of one request that do not determine its kind.
struct RequestDetail: Sendable {
  /// Bytes of content.
  var count = 0
  var isChunked = false
  var digest = Digest.none
  enum Digest: Sendable { case none, right, wrong }
  /// The point in the request, from 0 to 1, at which its client drops the connection; nil if it waits for the answer.
  var drop: Double?
  var dropsByReset = false
  /// How long its client waits between its parts, in microseconds.
  var pauses: [Int] = []
  /// The distance of an append's offset from the true one.
  var misplacement = 0
  /// The number of bytes between the end of the stream and the beginning of a creation's content.
  var hole = 0
  /// Whether a creation announces the whole length.
  var announcesLength = false
  /// Whether a creation contains the whole upload.
  var completes = false
  /// The interop version of a creation and of all requests to that upload; nil for the future RFC.
  var version: Int? = 8
  var isOnNewConnection = true
  /// Whether the other token's request has the same bytes as the stored ones.
  var guessesRight = false
}

/// When the second request is sent.
enum Interleaving: Sendable {
  case afterFirst, beforeFirst
  /// After that part of the first one, from 0 to 1.
  case within(Double)
  /// On the connection of the first one.
  case pipelined
}

/// How a step's result is checked.
enum Inspection: Sendable {
  /// HEAD, and an append at the offset that it reports.
  case headThenAppend
  case headOnly
  /// An append at the offset that the step's own answer reports.
  case appendAtAnnounced
}

/// One operation, and a simultaneous request.
package struct ChaosStep: Sendable {
  package var operation: Operation
  package var second: Second
  package var issuer: Issuer
  var detail: RequestDetail
  var secondDetail: RequestDetail
  var interleaving: Interleaving
  var inspection: Inspection
  /// The number of bytes in the append that verifies a reported offset.
  var probe: Int
  /// Whether the step may use an upload that has ended.
  var takesEnded: Bool
  /// The delay of an event after the second request was begun, or of the request from its deadline, in microseconds.
  var delay: Int
}

/// Several steps over the uploads and streams of two tokens.
package struct ChaosSequence: Sendable {
  package var seed: UInt64
  package var index: Int
  package var setting: ServerSetting
  package var steps: [ChaosStep]
  /// Whether quotas are verified to the byte at the end.
  var countsQuota: Bool
  /// The number of this repetition of the sequence; the first one has 0.
  package var copy = 0

  /// The index of the batch's event among the steps.
  var eventIndex: Int? { steps.firstIndex { !$0.operation.isRequest } }
  package var event: Operation? { eventIndex.map { steps[$0].operation } }

  /// The sequence with that index: the step that the cell requires, with others before and after it.
  package init(seed: UInt64, index: Int, cell: ChaosCell) {
    self.seed = seed
    self.index = index
    setting = cell.setting
    var random = SplitMix64(state: seed &+ UInt64(index) &* 0x9E37_79B9_7F4A_7C15)
    _ = random.next()
    steps = []
    // An event belongs to a batch, so it can occur only once, and where its cell requires it. Uploads that are over by
    // then must also outlive it.
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
    // Nothing follows a dropped request on its connection.
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
