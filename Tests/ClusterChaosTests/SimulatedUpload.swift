// A log with one upload, as several servers serve it. Its histories are linearizable by construction.

import ClusterChaosTesting
import PropertyTesting

/// Requests of several clients in a random order. An append names the message that it follows, like the servers'
/// appends.
struct SimulatedUpload {
  private struct Running {
    var index: Int
    var start: UInt64
    var completes: Bool
    /// The sequence of the upload's last message, when a server had read it.
    var sequence: Int?
    var received: UInt64 = 0
    var durable: UInt64 = 0
  }

  private(set) var history = UploadHistory()
  private(set) var length: UInt64 = 0
  private var random: SplitMix64
  private var time: Int64 = 0
  private var sequence = 1
  private(set) var isComplete = false
  private var running: [Running] = []

  init(seed: UInt64, steps: Int) {
    random = SplitMix64(state: seed)
    var creation = UploadHistory.Operation(.append(at: 0, completes: false), called: tick())
    creation.isWhole = true
    creation.answer = .init(time: tick(), status: 201, offset: 0)
    history.operations.append(creation)
    for _ in 0..<steps { step() }
  }

  private mutating func tick() -> Int64 {
    time += Int64.random(in: 1...10, using: &random)
    return time
  }

  private mutating func step() {
    switch Int.random(in: 0..<10, using: &random) {
    case 0...1 where running.count < 3: call()
    case 2: head()
    case _ where running.isEmpty: call()
    default: advance(Int.random(in: 0..<running.count, using: &random))
    }
  }

  private mutating func call() {
    let start = random.chance(80) ? length : UInt64.random(in: 0...length + 5, using: &random)
    let completes = random.chance(2)
    history.operations.append(.init(.append(at: start, completes: completes), called: tick()))
    running.append(Running(index: history.operations.count - 1, start: start, completes: completes))
  }

  private mutating func head() {
    var operation = UploadHistory.Operation(.head, called: tick())
    if !isComplete { sequence += 1 }
    operation.answer = .init(time: tick(), status: 204, offset: length, isComplete: isComplete)
    history.operations.append(operation)
  }

  private mutating func advance(_ place: Int) {
    var append = running[place]
    guard let known = append.sequence else {
      guard !isComplete, append.start == length else {
        return end(place, .init(time: tick(), status: isComplete ? 400 : 409, offset: isComplete ? nil : length))
      }
      running[place].sequence = sequence
      return
    }
    guard known == sequence else { return end(place, nil) }
    switch Int.random(in: 0..<6, using: &random) {
    case 0...1:
      let count = UInt64.random(in: 1...20, using: &random)
      append.received += count
      history.operations[append.index].sent += count
      running[place] = append
    case 2...3:
      publish(&append)
      running[place] = append
    case 4:
      if append.durable > 0 {
        history.operations[append.index].progress.append(
          .init(time: tick(), offset: append.start + append.durable, sent: append.received))
      }
    default:
      // The client has sent everything, or has disconnected.
      history.operations[append.index].isWhole = random.chance(70)
      publish(&append)
      guard history.operations[append.index].isWhole else { return end(place, nil) }
      if append.completes { isComplete = true }
      // The answer may be lost.
      end(place, random.chance(80) ? .init(time: tick(), status: 204, offset: length) : nil)
    }
  }

  private mutating func publish(_ append: inout Running) {
    length += append.received - append.durable
    append.durable = append.received
    sequence += 1
    append.sequence = sequence
  }

  private mutating func end(_ place: Int, _ answer: UploadHistory.Answer?) {
    history.operations[running.remove(at: place).index].answer = answer
  }
}
