// The time during which servers have served a log. Only this time counts for the age of an upload.
//
// Dates are never compared. A clock that jumps, servers that are down for a week, or brokers that cannot be reached
// must not end an upload. So a server counts the time in which it reads the log as it grows. From time to time one of
// the servers writes the sum into the log itself, as a message (a tick). The position of a tick among the messages of
// the uploads shows their ages to every server, also to one that starts later.

internal import JetStream

/// The time that servers have counted, as far as this server knows it. A value without I/O. `now` and all times are in
/// nanoseconds of a monotonic clock.
struct ServedTime {
  /// The counted time of the servers when they published a message.
  struct Tick: Equatable {
    var sequence: UInt64
    var time: Int64
  }

  /// The second part of the ticks' subject.
  static let token = "served"
  private enum Name {
    static let time = "Sluice-Served"
    static let earlier = "Sluice-Served-Earlier"
  }
  /// The headers of a tick.
  static let headerNames = [Name.time, Name.earlier]
  /// The maximum number of ticks in a message. They are an eighth of their age apart, so this is enough for years.
  private static let largestCount = 96
  private static let (millisecond, largestTime) = (Int64(1_000_000), Int64.max / 4)

  /// The ticks, the oldest first.
  private(set) var ticks: [Tick] = []
  /// The sequence of the last message of the ticks' subject, after which the next tick is published. 0 if there is
  /// none. Anybody may publish to the subject, so this message need not be a tick.
  private(set) var lastSequence: UInt64 = 0
  /// The counted time of this server when it read the last one.
  private var lastTickAt: Int64 = 0
  private var counted: Int64 = 0
  private var countsSince: Int64?

  // MARK: Counting

  /// The time that this server has counted itself.
  func own(_ now: Int64) -> Int64 {
    counted + (countsSince.map { min(max(0, now - $0), Self.longestStep) } ?? 0)
  }

  /// The time that counts at most between two calls of ``advance(_:)``. A server that was stopped (SIGSTOP, a frozen
  /// container) has not served any client.
  static let longestStep: Int64 = 60_000_000_000

  /// Called from time to time.
  mutating func advance(_ now: Int64) {
    guard countsSince != nil else { return }
    counted = own(now)
    countsSince = now
  }

  /// Called when new messages of the log are read from now on.
  mutating func resume(_ now: Int64) { if countsSince == nil { countsSince = now } }

  /// Called when new messages of the log cannot be read for now.
  mutating func pause(_ now: Int64) {
    counted = own(now)
    countsSince = nil
  }

  /// Called when the log is another one than before.
  mutating func forgetTicks() { (ticks, lastSequence) = ([], 0) }

  // MARK: Ages

  /// The minimum time since the publication of a message.
  ///
  /// - Parameter seen: the counted time of this server when it read the message.
  func age(of sequence: UInt64, seen: Int64, _ now: Int64) -> Int64 {
    let own = own(now)
    guard let last = ticks.last, let index = firstTick(after: sequence) else { return own - seen }
    // It is older than the tick after it. The time that servers counted before that tick may be before the message.
    return max(own - seen, last.time - ticks[index].time + own - lastTickAt)
  }

  private func firstTick(after sequence: UInt64) -> Int? {
    var (low, high) = (0, ticks.count)
    while low < high {
      let middle = (low + high) / 2
      if ticks[middle].sequence > sequence { high = middle } else { low = middle + 1 }
    }
    return low < ticks.count ? low : nil
  }

  // MARK: Ticks

  /// The time that this server has counted since the last tick.
  func sinceTick(_ now: Int64) -> Int64 { own(now) - lastTickAt }

  /// The message to publish after ``lastSequence``.
  func nextTick(_ now: Int64) -> MessageContent {
    let time = min((ticks.last?.time ?? 0) + sinceTick(now), Self.largestTime)
    let earlier = Self.thinned(ticks, at: time).suffix(Self.largestCount)
    var content = MessageContent(headers: [.init(Name.time, String(time / Self.millisecond))])
    // libnats takes the line after a header without a value for its value.
    guard !earlier.isEmpty else { return content }
    let text = earlier.map { "\($0.sequence)=\($0.time / Self.millisecond)" }.joined(separator: " ")
    content.headers.append(.init(Name.earlier, text))
    return content
  }

  /// Called when a message of the ticks' subject was read. If it is not a tick, or has less time than an earlier one,
  /// only its sequence counts.
  mutating func read(_ content: MessageContent, at sequence: UInt64, _ now: Int64) {
    guard sequence > lastSequence else { return }
    lastSequence = sequence
    guard let time = Self.time(content[Name.time]), time >= ticks.last?.time ?? 0 else { return }
    var found: [Tick] = []
    for text in (content[Name.earlier] ?? "").split(separator: " ").prefix(Self.largestCount) {
      let parts = text.split(separator: "=", omittingEmptySubsequences: false)
      guard parts.count == 2, let sequence = UInt64(parts[0]), let time = Self.time(String(parts[1])) else { return }
      found.append(Tick(sequence: sequence, time: time))
    }
    found.append(Tick(sequence: sequence, time: time))
    guard zip(found, found.dropFirst()).allSatisfy({ $0.sequence < $1.sequence && $0.time <= $1.time }) else { return }
    (ticks, lastTickAt) = (found, own(now))
  }

  /// Called with the last message of the ticks' subject after the broker has refused a tick. The message may be older
  /// than the last one that was read, because an operator can remove messages.
  mutating func follow(_ content: MessageContent, at sequence: UInt64, _ now: Int64) {
    read(content, at: sequence, now)
    lastSequence = sequence
  }

  private static func time(_ text: String?) -> Int64? {
    guard let text, let value = Int64(text), value >= 0, value <= largestTime / millisecond else { return nil }
    return value * millisecond
  }

  /// The ticks without those between two that are closer together than an eighth of their age.
  private static func thinned(_ ticks: [Tick], at time: Int64) -> [Tick] {
    var kept: [Tick] = []
    for (index, tick) in ticks.enumerated() {
      if let before = kept.last, index + 1 < ticks.count,
        case let next = ticks[index + 1], next.time - before.time <= (time - next.time) / 8
      {
        continue
      }
      kept.append(tick)
    }
    return kept
  }
}
