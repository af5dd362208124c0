// The state machine of an append against a model of a broker, with random losses, repetitions and rivals.

import JetStream
import PropertyTesting
import ResumableUploads
import Testing

@testable import LogServing

@Suite("The state machine of an append")
struct LogAppendTests {
  /// A subject of a broker, which decides by sequences alone.
  private struct Log {
    struct Message { var sequence: UInt64, bytes: [UInt8], publisher: Int, number: UInt64, completes: Bool }
    var messages: [Message] = []
    var last: UInt64 { messages.last?.sequence ?? 0 }
    var bytes: [UInt8] { messages.flatMap(\.bytes) }

    mutating func publish(_ batch: LogAppend.Batch, after sequence: UInt64, by publisher: Int) -> UInt64? {
      guard sequence == last else { return nil }
      messages.append(
        Message(
          sequence: last + UInt64.random(in: 1...3), bytes: batch.bytes, publisher: publisher, number: batch.number,
          completes: batch.completes))
      return last
    }
  }

  /// A request: the part of the pattern that it has sent, and its answers.
  private struct Appender {
    var machine: LogAppend
    var isOver = false
    var hasFailed = false
    var acknowledged: UInt64
    var sent: UInt64
  }

  private static let refused = BrokerError.refused(code: 400, number: 10071, reason: "wrong last sequence")

  @Test(
    "no message follows the one that ends an upload, although a sign of activity was due", arguments: [true, false])
  func lastMessage(isAcknowledged: Bool) {
    let ends: [(inout LogAppend) -> Void] = [
      { $0.complete() }, { $0.deactivate(.stateLost) }, { $0.discard(.lengthExceeded) },
    ]
    for end in ends {
      var append = LogAppend(after: 0, at: 0, announcing: true)
      append.take([1, 2, 3])
      end(&append)
      guard case .publish = append.next(limit: 5) else {
        Issue.record("nothing is published")
        continue
      }
      append.announce()
      if isAcknowledged {
        #expect(append.published(sequence: 7) == .advanced)
      } else {
        #expect(append.failed(Self.refused, now: 0) == .readLast)
        #expect(append.found(sequence: 7, isOwn: true, now: 0) == .advanced)
      }
      #expect(append.isLast && append.isDrained && append.next(limit: 5) == .nothing)
      append.announce()
      #expect(append.isLast && append.isDrained && append.next(limit: 5) == .nothing)
    }
  }

  @Test("for any losses on the way, the log contains no hole, no repeated byte, and all acknowledged bytes")
  func faults() {
    for seed in UInt64(1)...2000 {
      var random = SplitMix64(state: seed)
      var (log, now, rounds) = (Log(), Int64(0), 0)
      var appenders: [Appender] = []
      // Delayed requests: a broker may accept a message long after its sender gave up.
      var late: [(Int, LogAppend.Batch, UInt64)] = []
      while rounds < 60 {
        rounds += 1
        if appenders.isEmpty || random.chance(10) {
          // A client continues at the end of the log.
          let offset = UInt64(log.bytes.count)
          appenders.append(
            Appender(
              machine: LogAppend(after: log.last, at: offset, announcing: log.messages.isEmpty), acknowledged: offset,
              sent: offset))
        }
        let index = Int.random(in: 0..<appenders.count, using: &random)
        guard !appenders[index].isOver else { continue }
        let count = Int.random(in: 0...9, using: &random)
        appenders[index].machine.take((0..<count).map { UInt8(truncatingIfNeeded: appenders[index].sent + UInt64($0)) })
        appenders[index].sent += UInt64(count)
        var action = appenders[index].machine.next(limit: 5)
        var steps = 0
        // A few steps, and then others have their turn, possibly with a message in progress.
        while action != .nothing, steps < 6 {
          steps += 1
          switch action {
          case .nothing: break
          case .publish(let batch, let sequence):
            switch Int.random(in: 0..<10, using: &random) {
            case 0:  // Lost before it arrived, or arrives later.
              if random.chance(50) { late.append((index, batch, sequence)) }
              action = appenders[index].machine.failed(.timedOut, now: now)
            case 1:  // The acknowledgement is lost.
              _ = log.publish(batch, after: sequence, by: index)
              action = appenders[index].machine.failed(random.chance(50) ? .disconnected : .timedOut, now: now)
            default:
              if let sequence = log.publish(batch, after: sequence, by: index) {
                action = appenders[index].machine.published(sequence: sequence)
              } else {
                action = appenders[index].machine.failed(Self.refused, now: now)
              }
            }
          case .readLast:
            if random.chance(10) {
              action = appenders[index].machine.failed(.noResponders, now: now)
            } else {
              // Sometimes an outdated broker answers.
              let isStale = random.chance(10) && log.messages.count > 1
              let message = isStale ? log.messages[log.messages.count - 2] : log.messages.last
              action = appenders[index].machine.found(
                sequence: message?.sequence ?? 0,
                isOwn: message?.publisher == index && message?.number == appenders[index].machine.lastNumber, now: now)
            }
          case .wait(let time):
            now = max(now, time)
            if !late.isEmpty, random.chance(50) {
              let (publisher, batch, sequence) = late.removeFirst()
              _ = log.publish(batch, after: sequence, by: publisher)
            }
            action = appenders[index].machine.retry()
          case .advanced:
            appenders[index].acknowledged = appenders[index].machine.durable
            action = appenders[index].machine.next(limit: 5)
          case .takenOver, .failed:
            appenders[index].isOver = true
            action = .nothing
          }
        }
        if steps == 6 { appenders[index].isOver = true }
        let bytes = log.bytes
        #expect(bytes == (0..<bytes.count).map { UInt8(truncatingIfNeeded: $0) }, "seed \(seed)")
        #expect(appenders.allSatisfy { $0.acknowledged <= UInt64(bytes.count) }, "seed \(seed)")
      }
      #expect(!log.messages.isEmpty, "seed \(seed)")
    }
  }

  @Test("an append whose acknowledgement is lost recognizes its message and continues")
  func lostAcknowledgement() {
    var machine = LogAppend(after: 4, at: 10, announcing: false)
    machine.take([1, 2, 3])
    #expect(machine.next(limit: 9) == .publish(.init(number: 1, offset: 10, bytes: [1, 2, 3]), after: 4))
    #expect(machine.failed(.timedOut, now: 0) == .wait(until: 20_000_000))
    #expect(machine.retry() == .publish(.init(number: 1, offset: 10, bytes: [1, 2, 3]), after: 4))
    #expect(machine.failed(Self.refused, now: 0) == .readLast)
    #expect(machine.found(sequence: 5, isOwn: true, now: 0) == .advanced)
    #expect(machine.durable == 13 && machine.sequence == 5 && machine.isDrained)
  }

  @Test("an append that another one has overtaken ends")
  func overtaken() {
    var machine = LogAppend(after: 4, at: 10, announcing: false)
    machine.take([1])
    _ = machine.next(limit: 9)
    #expect(machine.failed(Self.refused, now: 0) == .readLast)
    #expect(machine.found(sequence: 6, isOwn: false, now: 0) == .takenOver)
    machine.take([2])
    #expect(machine.next(limit: 9) == .nothing)
    #expect(machine.durable == 10)
  }

  @Test("an append with nothing to publish ends when another one has published, and not because of earlier messages")
  func overtakenInSilence() {
    var machine = LogAppend(after: 4, at: 10, announcing: false)
    #expect(machine.read(other: 4) == .nothing)
    machine.take([1])
    _ = machine.next(limit: 9)
    // The other message precedes the one in flight, which the broker refuses, or has stored after all.
    #expect(machine.read(other: 5) == .nothing)
    #expect(machine.published(sequence: 6) == .advanced)
    #expect(machine.read(other: 5) == .nothing)
    #expect(machine.read(other: 7) == .takenOver)
    machine.take([2])
    #expect(machine.next(limit: 9) == .nothing)
    #expect(machine.read(other: 8) == .nothing)
    // The other message follows the one in flight, whose acknowledgement is still on its way.
    var behind = LogAppend(after: 4, at: 10, announcing: true)
    _ = behind.next(limit: 9)
    #expect(behind.read(other: 6) == .nothing)
    #expect(behind.published(sequence: 5) == .takenOver)
    var complete = LogAppend(after: 4, at: 10, announcing: false)
    complete.complete()
    _ = complete.next(limit: 9)
    _ = complete.published(sequence: 5)
    #expect(complete.read(other: 6) == .nothing, "it has its response")
  }

  @Test("the server waits for brokers that accept nothing with growing pauses, and not forever")
  func patience() {
    var machine = LogAppend(after: 0, at: 0, announcing: true)
    _ = machine.next(limit: 9)
    var (now, pauses): (Int64, [Int64]) = (0, [])
    while case .wait(let time) = machine.failed(.disconnected, now: now) {
      pauses.append(time - now)
      now = time
      _ = machine.retry()
    }
    #expect(pauses.first == 20_000_000 && pauses.last == 500_000_000 && pauses == pauses.sorted())
    #expect(now >= LogAppend.patience && now < LogAppend.patience + 500_000_000)
    #expect(machine.retry() == .nothing)
  }

  @Test("bytes that arrive while a message is in flight are published together, in the next message")
  func batching() {
    var machine = LogAppend(after: 4, at: 10, announcing: false)
    machine.take([1])
    #expect(machine.next(limit: 9) == .publish(.init(number: 1, offset: 10, bytes: [1]), after: 4))
    for bytes: [UInt8] in [[2], [3, 4], [5]] {
      machine.take(bytes)
      #expect(machine.next(limit: 9) == .nothing)
    }
    #expect(machine.published(sequence: 5) == .advanced)
    #expect(machine.next(limit: 9) == .publish(.init(number: 2, offset: 11, bytes: [2, 3, 4, 5]), after: 5))
    #expect(machine.published(sequence: 6) == .advanced)
    #expect(machine.next(limit: 9) == .nothing)
    #expect(machine.isDrained && machine.durable == 15)
  }

  @Test("content that is longer than a message is split, and only the last part completes the upload")
  func splitting() {
    var machine = LogAppend(after: 0, at: 0, announcing: false)
    machine.take(Array(0..<7))
    machine.complete()
    var (batches, sequence): ([LogAppend.Batch], UInt64) = ([], 0)
    while case .publish(let batch, let after) = machine.next(limit: 3) {
      #expect(after == sequence)
      sequence += 1
      batches.append(batch)
      #expect(machine.next(limit: 3) == .nothing, "one message at a time")
      #expect(machine.published(sequence: sequence) == .advanced)
    }
    #expect(batches.map(\.bytes) == [[0, 1, 2], [3, 4, 5], [6]])
    #expect(batches.map(\.offset) == [0, 3, 6])
    #expect(batches.map(\.completes) == [false, false, true])
    #expect(machine.isDrained)
  }
}
