// Two hundred consecutive connections that are reset at random offsets, from memory to memory at full speed.

import CommandTesting
import Glibc
import PropertyTesting
import TestRigs
import Testing

@Suite("Random connection resets of a plain stream")
struct ResetTests {
  private static let resets = 200
  /// On a tmpfs, so that no disk slows down the bytes, and resets occur with full buffers.
  private let memory = ScratchDirectory(in: "/dev/shm")

  /// The position of each connection's reset, and enough bytes for all of them.
  private struct Plan {
    let after: [Int]
    let bytes: [UInt8]

    init(_ seed: Seed) {
      var random = seed.generator
      after = (0..<ResetTests.resets).map { _ in
        // A few within the head, or just after it.
        random.chance(10) ? Int.random(in: 0...600, using: &random) : Int.random(in: 0...(512 << 10), using: &random)
      }
      // In addition to these counts, resets destroy at most the content of the sockets.
      let count = after.reduce(0, +) + ResetTests.resets * (192 << 10) + Int.random(in: 0..<100_000, using: &random)
      bytes = [UInt8](unsafeUninitializedCapacity: count) { buffer, initialized in
        var at = 0
        while at + 8 <= count {
          UnsafeMutableRawPointer(buffer.baseAddress! + at).storeBytes(of: random.next(), as: UInt64.self)
          at += 8
        }
        while at < count {
          buffer[at] = UInt8(truncatingIfNeeded: random.next())
          at += 1
        }
        initialized = count
      }
    }
  }

  private func stream(_ plan: Plan, through proxy: FaultyProxy, from server: ServeProcess) throws -> (
    StoredStream, FlatObject
  ) {
    let input = memory.write(plan.bytes, to: "input")
    let client = try StreamProcess(
      "pipe", proxy.url, more: StreamProcess.plain + ["--retry-ceiling", "5ms"], input: input)
    let summary = try client.ended(limit: .seconds(100))
    let ended = try server.event("ended")
    #expect(proxy.connections == Self.resets + 1)
    #expect(client.failures.count == Self.resets)
    #expect(summary.integer("captured") == plan.bytes.count)
    let stored = try StoredStream(memory.path, try #require(ended.text("file")))
    #expect(ended.integer("bytes") == plan.bytes.count)
    #expect(ended.integer("missing") == stored.missing)
    #expect(summary.integer("missing_at_server") == stored.missing)
    #expect(summary.integer("lost") == stored.missing)
    #expect(summary.integer("acknowledged") == plan.bytes.count - stored.missing)
    return (stored, summary)
  }

  @Test(
    "if all bytes that TCP had acknowledged were delivered, every byte is stored once, at its offset",
    arguments: Seed.several(1))
  func lossless(seed: Seed) throws {
    let plan = Plan(seed)
    let server = try ServeProcess(memory.path)
    let proxy = try FaultyProxy(to: server.address) {
      $0 < Self.resets ? .resetAfterDelivery(after: plan.after[$0]) : .relay
    }
    defer { proxy.stop() }
    let (stored, _) = try stream(plan, through: proxy, from: server)
    #expect(stored.holes.isEmpty)
    #expect(stored.firstDifference(from: plan.bytes) == nil, "\(seed)")
  }

  @Test(
    "if acknowledged bytes are lost with the connection, exactly these are missing, and all parties report it",
    arguments: Seed.several(1))
  func holes(seed: Seed) throws {
    let plan = Plan(seed)
    let server = try ServeProcess(memory.path)
    let proxy = try FaultyProxy(to: server.address) { $0 < Self.resets ? .reset(after: plan.after[$0]) : .relay }
    defer { proxy.stop() }
    let (stored, _) = try stream(plan, through: proxy, from: server)
    #expect(stored.missing > 0, "the proxy has lost nothing: this run shows nothing")
    #expect(stored.firstDifference(from: plan.bytes) == nil, "\(seed)")
  }
}
