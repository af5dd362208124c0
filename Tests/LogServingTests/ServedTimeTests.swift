// Servers that come and go, and what they make of the age of a message, against a model that sees all of them.

import JetStream
import PropertyTesting
import Testing

@testable import LogServing

@Suite("Served time")
struct ServedTimeTests {
  /// A server as the model runs it.
  private struct Server {
    var time = ServedTime()
    /// Up to which message it has read the log; nil before its first look.
    var position: UInt64 = 0
    /// What it had counted when it read each message.
    var seen: [UInt64: Int64] = [:]
    var isCurrent = false
    /// When it began to be current without a break.
    var currentSince: Int64 = 0
  }

  private struct Message {
    var sequence: UInt64
    var tick: ServedTime?
    /// How long servers had served when it was published.
    var served: Int64
  }

  @Test("no tick has a header without a value")
  func firstTick() {
    var time = ServedTime()
    for sequence in 1...3 as ClosedRange<UInt64> {
      let tick = time.nextTick(Int64(sequence) * 1_000_000_000)
      #expect(tick.headers.count == (sequence == 1 ? 1 : 2) && tick.headers.allSatisfy { !$0.value.isEmpty })
      time.read(tick, at: sequence, Int64(sequence) * 1_000_000_000)
    }
  }

  @Test("time in which a server was stopped does not count, except for a minute at most")
  func stopped() {
    let hour = 3600 * Self.interval
    var time = ServedTime()
    time.resume(0)
    for second in 1...600 { time.advance(Int64(second) * Self.interval) }
    #expect(time.own(600 * Self.interval) == 600 * Self.interval)
    let counted = 600 * Self.interval + ServedTime.longestStep
    #expect(time.own(hour) == counted)
    // It notices that it was stopped, in one way or another.
    for notice in 0...2 {
      var woken = time
      if notice > 0 { woken.advance(hour) }
      if notice > 1 { woken.advance(hour + Self.interval) }
      woken.pause(hour + Self.interval)
      woken.resume(2 * hour)
      #expect(woken.own(2 * hour) <= counted + Self.interval && woken.own(2 * hour) >= counted)
    }
  }

  private static let interval: Int64 = 1_000_000_000

  @Test("no message looks older than the time served since then, even if servers start, stop or are cut off")
  func neverTooOld() throws {
    let seed = UInt64.random(in: 0..<1_000_000)
    print("seed \(seed)")
    var random = SplitMix64(state: seed)
    for _ in 0..<300 { try run(&random) }
  }

  private func run(_ random: inout SplitMix64) throws {
    var (now, served, sequence): (Int64, Int64, UInt64) = (Int64.random(in: 0...1 << 60, using: &random), 0, 0)
    var servers: [Server] = []
    var uploads: [Message] = []
    var tick: (content: ServedTime, sequence: UInt64, now: Int64)?
    func read(_ server: inout Server) {
      for upload in uploads where upload.sequence > server.position {
        server.seen[upload.sequence] = server.time.own(now)
      }
      // A server that begins reads only the last tick.
      if let tick, tick.sequence > server.position {
        server.time.read(tick.content.nextTick(tick.now), at: tick.sequence, now)
      }
      server.position = sequence
    }
    for _ in 0..<200 {
      // At most as long as a tick takes, so that none is missed while a server runs.
      let step = Int64.random(in: 0...Self.interval / 4, using: &random)
      now += step
      if servers.contains(where: \.isCurrent) { served += step }
      switch Int.random(in: 0..<12, using: &random) {
      case 0 where servers.count < 4: servers.append(Server())
      case 1 where !servers.isEmpty: servers.remove(at: Int.random(in: 0..<servers.count, using: &random))
      case 2 where !servers.isEmpty:
        let index = Int.random(in: 0..<servers.count, using: &random)
        if servers[index].isCurrent { servers[index].time.pause(now) }
        servers[index].isCurrent = false
      case 3, 4:
        if !servers.contains(where: \.isCurrent) { now += Int64.random(in: 0...1_000_000_000_000_000, using: &random) }
      case 5...7 where servers.contains(where: \.isCurrent):
        sequence += 1
        uploads.append(Message(sequence: sequence, served: served))
      default: break
      }
      for index in servers.indices where !servers[index].isCurrent && random.chance(30) {
        read(&servers[index])
        servers[index].time.resume(now)
        (servers[index].isCurrent, servers[index].currentSince) = (true, now)
      }
      for index in servers.indices where servers[index].isCurrent && random.chance(80) { read(&servers[index]) }
      // The broker accepts a tick behind the last one only.
      for index in servers.indices where servers[index].isCurrent {
        guard servers[index].time.sinceTick(now) >= Self.interval,
          servers[index].time.lastSequence == tick?.sequence ?? 0
        else { continue }
        sequence += 1
        tick = (servers[index].time, sequence, now)
        read(&servers[index])
      }
      for server in servers where server.isCurrent {
        for upload in uploads where upload.sequence <= server.position {
          let seen = try #require(server.seen[upload.sequence])
          let age = server.time.age(of: upload.sequence, seen: seen, now)
          #expect(age <= served - upload.served, "message \(upload.sequence)")
          if age > served - upload.served { return }
        }
      }
    }
  }

  @Test("the age of a message survives restarts, and the ticks stay few")
  func restarts() throws {
    let seed = UInt64.random(in: 0..<1_000_000)
    print("seed \(seed)")
    var random = SplitMix64(state: seed)
    var (now, sequence): (Int64, UInt64) = (0, 0)
    var tick: (content: ServedTime, sequence: UInt64, now: Int64)?
    // Messages, and what servers had counted when these were published.
    var uploads: [(sequence: UInt64, counted: Int64)] = []
    for _ in 0..<200 {
      var server = ServedTime()
      if let tick { server.read(tick.content.nextTick(tick.now), at: tick.sequence, now) }
      server.resume(now)
      let end = now + Int64.random(in: 0...20 * Self.interval, using: &random)
      // Downtime does not count.
      defer { now += 1_000_000 * Self.interval }
      while now < end {
        now += Self.interval / 3
        if random.chance(10) {
          sequence += 1
          uploads.append((sequence, (server.ticks.last?.time ?? 0) + server.sinceTick(now)))
        }
        guard server.sinceTick(now) >= Self.interval else { continue }
        sequence += 1
        tick = (server, sequence, now)
        server.read(server.nextTick(now), at: sequence, now)
      }
      guard let tick else { continue }
      var next = ServedTime()
      next.read(tick.content.nextTick(tick.now), at: tick.sequence, now)
      let last = next.ticks[next.ticks.count - 1].time
      for upload in uploads {
        let age = next.age(of: upload.sequence, seen: next.own(now), now)
        #expect(age >= (last - upload.counted) * 7 / 8 - Self.interval * 2)
      }
      #expect(next.ticks.count <= 97)
    }
  }

  @Test("a message that is not a tick changes no age, and the next tick follows it")
  func damaged() {
    var good = ServedTime()
    good.resume(0)
    var time = good
    time.read(good.nextTick(5_000_000_000), at: 7, 5_000_000_000)
    #expect(time.ticks == [.init(sequence: 7, time: 5_000_000_000)])
    let before = time.ticks
    for (index, (served, earlier)) in [
      ("", ""), ("-1", ""), ("x", ""), ("99999999999999999999", ""), ("6000", "7"), ("6000", "7=x"),
      ("6000", "9=1 8=2"),
      ("6000", "1=7000"), ("6000", "99=1"), ("9223372036854775807", ""),
      // It has less time than the last tick.
      ("4999", ""),
    ].enumerated() {
      let sequence = 20 + UInt64(index)
      time.read(
        .init(headers: [.init("Sluice-Served", served), .init("Sluice-Served-Earlier", earlier)]), at: sequence,
        6_000_000_000)
      #expect(time.ticks == before, "\(served) \(earlier)")
      #expect(time.lastSequence == sequence)
    }
    // An older one, which comes again.
    let last = time.lastSequence
    time.read(good.nextTick(6_000_000_000), at: 7, 6_000_000_000)
    #expect(time.ticks == before && time.lastSequence == last)
  }

  @Test("after a refusal, the next tick follows the last message, whatever it is, and the counted time stays")
  func refused() {
    var time = ServedTime()
    time.resume(0)
    time.read(time.nextTick(5_000_000_000), at: 7, 5_000_000_000)
    let before = time.ticks
    // A foreign message, and then an earlier one, because an operator has removed the foreign message.
    for sequence: UInt64 in [9, 3] {
      time.follow(MessageContent(payload: [1]), at: sequence, 6_000_000_000)
      #expect(time.lastSequence == sequence && time.ticks == before)
    }
    time.follow(time.nextTick(6_000_000_000), at: 12, 6_000_000_000)
    #expect(time.lastSequence == 12)
    #expect(time.ticks.last == .init(sequence: 12, time: 6_000_000_000))
    time.forgetTicks()
    #expect(time.lastSequence == 0 && time.ticks.isEmpty)
  }
}
