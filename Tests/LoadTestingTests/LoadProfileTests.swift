import FoundationEssentials
import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("A load profile")
struct LoadProfileTests {
  private func profile(_ text: String) throws -> LoadProfile {
    try LoadProfile(json: Array(text.utf8), file: "some/talk.json")
  }

  private func problem(_ text: String) -> String? {
    do { _ = try profile(text) } catch { return "\(error)" }
    return nil
  }

  /// The JSON of docs/load-profiles.md.
  private static let examples: [String] = {
    let root = #filePath.split(separator: "/").dropLast(3).joined(separator: "/")
    let page = (try? String(contentsOfFile: "/\(root)/docs/load-profiles.md", encoding: .utf8)) ?? ""
    return page.split(separator: "```json\n").dropFirst().map { String($0.prefix(while: { $0 != "`" })) }
  }()

  @Test("every example of the documentation is read, with the meaning on the page")
  func documentation() throws {
    #expect(Self.examples.count == 3)
    let profiles = try Self.examples.map(profile)
    #expect(profiles.map(\.name) == ["conversation", "sensors", "talk"])
    try #require(profiles.count == 3)
    let first = profiles[0]
    #expect(first.size == .rate(32000) && first.chunk == 20_000_000 && first.jitter == 4_000_000)
    #expect(first.turns?.silenceRate == 400)
    #expect(first.turns?.talk == .lognormal(median: 1_200_000_000, sigma: 0.8))
    #expect(first.thinkTime == .uniform(1_000_000_000...10_000_000_000))
    #expect(profiles[1].size == .bytes(30...200) && profiles[1].bursts?.factor == 20)
    #expect(profiles[1].faults.slowFraction == 0.05 && profiles[1].faults.slowRate == 2000)
    #expect(profiles[1].faults.stalls?.length == .list([500_000_000, 2_000_000_000, 10_000_000_000]))
    #expect(profiles[2].size == .unpaced(65536) && profiles[2].body == .file("recording.wav"))
    #expect(profiles[2].streamLength == .fixed(20_000_000_000))
  }

  @Test("every profile is read again unchanged")
  func roundTrip() throws {
    for profile in try Self.examples.map(profile) + LoadProfile.builtIn {
      #expect(try LoadProfile(json: Array(profile.json.utf8), file: "x") == profile)
    }
  }

  @Test("each key has its meaning, and is written again")
  func everyKey() throws {
    var expected = LoadProfile()
    expected.name = "all"
    (expected.chunk, expected.size, expected.jitter) = (50_000_000, .bytes(1...1), 50_000_000)
    expected.turns = .init(talk: .fixed(1), silence: .uniform(2...2), silenceRate: 0)
    expected.bursts = .init(every: .exponential(mean: 3), length: .list([4]), factor: 1000)
    expected.streamLength = .lognormal(median: 5, sigma: 10)
    expected.thinkTime = .uniform(6...7)
    expected.faults.dropEvery = .fixed(8)
    (expected.faults.slowFraction, expected.faults.slowRate) = (1, 1)
    expected.faults.stalls = .init(every: .fixed(9), length: .fixed(10))
    expected.body = .random
    let text = """
      {"name": "all", "chunk": "50ms", "message": "1B", "jitter": "50ms", "talk": {"length": "1ns"},
       "silence": {"length": {"uniform": ["2ns", "2ns"]}, "rate": "0B"},
       "bursts": {"every": {"exponential": "3ns"}, "length": {"list": ["4ns"]}, "factor": 1000},
       "stream_length": {"lognormal": {"median": "5ns", "sigma": 10}}, "think_time": {"uniform": ["6ns", "7ns"]},
       "faults": {"drop_every": "8ns", "slow_fraction": 1, "slow_rate": "1B",
                  "stall": {"every": "9ns", "length": "10ns"}}, "body": "random"}
      """
    #expect(try profile(text) == expected)
    #expect(try LoadProfile(json: Array(expected.json.utf8), file: "x") == expected)
    for body in [LoadProfile.Body.zeros, .random, .pattern, .file("a/b.wav")] {
      expected.body = body
      #expect(try LoadProfile(json: Array(expected.json.utf8), file: "x").body == body)
    }
    #expect(try profile(#"{"bursts": {"every": "1s", "length": "1s"}}"#).bursts?.factor == 10)
    #expect(try profile(#"{"stream_length": "endless"}"#).streamLength == nil)
    #expect(try profile(#"{"rate": "10GB", "chunk": "1ms"}"#).size == .rate(10_000_000_000))
    #expect(try profile(#"{"rate": "max"}"#).size == .unpaced(65536))
    #expect(try profile(#"{"rate": "max", "message": "7B"}"#).size == .unpaced(7))
    #expect(try profile(#"{"faults": {"slow_fraction": "0%"}}"#).faults.slowFraction == 0)
  }

  @Test("the largest message has 64 MiB, in a burst as well")
  func largest() throws {
    #expect(try profile("{\"message\": \"67108864B\"}").size == .bytes(67_108_864...67_108_864))
    let limit = "The limit is 64 MiB"
    #expect(problem("{\"message\": \"67108865B\"}")?.hasSuffix(limit) == true)
    let bursts = #""bursts": {"every": "1s", "length": "1s", "factor": 2}"#
    #expect(try profile("{\"message\": \"33554432B\", \(bursts)}").bursts?.factor == 2)
    #expect(problem("{\"message\": \"33554433B\", \(bursts)}")?.hasSuffix(limit) == true)
  }

  @Test("the built-in profiles, with their sizes and rates")
  func builtIn() {
    let profiles = LoadProfile.builtIn
    #expect(profiles.map(\.name) == ["mic", "heartbeat", "bulk"] && profiles.map(\.isPaced) == [true, true, false])
    #expect(profiles.map(\.size) == [.rate(96_000), .bytes(30...60), .unpaced(65_536)])
    #expect(profiles.map(\.chunk) == [100_000_000, 1_000_000_000, 100_000_000])
    #expect(profiles.map(\.messageSize) == [9600, 45, 65_536] && profiles.map(\.rate) == [96_000, 45, 0])
    var timeless = LoadProfile.heartbeat
    timeless.chunk = 0
    #expect(timeless.rate == 0)
  }

  @Test(
    "a part of a profile with an unknown key, or with an impossible value, is refused",
    arguments: [
      (#"{"talk": {"length": "1s", "x": 1}, "silence": {"length": "1s"}}"#, "profile.talk.x: is an unknown key"),
      (#"{"talk": {}, "silence": {"length": "1s"}}"#, "profile.talk.length: is missing"),
      (#"{"silence": {"length": "1s", "x": 1}}"#, "profile.silence.x: is an unknown key"),
      (#"{"silence": {"length": "1s"}}"#, #"profile.silence: requires "talk""#),
      (#"{"bursts": {"every": "1s", "length": "1s", "x": 1}}"#, "profile.bursts.x: is an unknown key"),
      (#"{"bursts": {"length": "1s"}}"#, "profile.bursts.every: is missing"),
      (#"{"bursts": {"every": "1s"}}"#, "profile.bursts.length: is missing"),
      (#"{"bursts": {"every": "1s", "length": "1s", "factor": 1}}"#, "profile.bursts.factor: a whole number from 2"),
      (#"{"bursts": {"every": "1s", "length": "1s", "factor": 1001}}"#, "profile.bursts.factor: a whole number"),
      (#"{"faults": {"stall": {"every": "1s", "length": "1s", "x": 1}}}"#, "profile.faults.stall.x: is an unknown key"),
      (#"{"faults": {"stall": {"length": "1s"}}}"#, "profile.faults.stall.every: is missing"),
      (#"{"faults": {"stall": {"every": "1s"}}}"#, "profile.faults.stall.length: is missing"),
      (#"{"faults": {"slow_rate": "0B"}}"#, #"profile.faults.slow_rate: a size like "4kB", not "0B""#),
      (#"{"faults": {"slow_fraction": -0.1}}"#, "profile.faults.slow_fraction: a share"),
      (#"{"body": {"file": "a", "x": 1}}"#, "profile.body.x: is an unknown key"),
      (#"{"body": {}}"#, "profile.body.file: is missing"),
      (#"{"think_time": {"lognormal": {"median": "1s", "sigma": 1, "x": 1}}}"#, "lognormal.x: is an unknown key"),
      (#"{"think_time": {"lognormal": {"sigma": 1}}}"#, "lognormal.median: is missing"),
      (#"{"think_time": {"lognormal": {"median": "1s"}}}"#, "lognormal.sigma: is missing"),
      (#"{"think_time": {"lognormal": {"median": "1s", "sigma": 11}}}"#, "lognormal.sigma: a number from 0 to 10"),
      (#"{"think_time": {"uniform": ["3s", "1s"]}}"#, "profile.think_time.uniform: two durations"),
      (#"{"think_time": {"uniform": ["3s"]}}"#, "profile.think_time.uniform: two durations"),
      (#"{"think_time": {"uniform": ["1s", "2s", "3s"]}}"#, "profile.think_time.uniform: two durations"),
      (#"{"think_time": {"uniform": ["1s", "2s"], "exponential": "1s"}}"#, "profile.think_time: a duration"),
      (#"{"rate": "max", "message": ["1B", "2B"]}"#, "profile.message: one size like"),
      (#"{"message": ["1B"]}"#, "profile.message: a size like"),
      (#"{"message": "0B"}"#, "profile.message: a size like"),
    ])
  func parts(_ text: String, _ message: String) {
    #expect(problem(text)?.contains(message) == true, "\(problem(text) ?? "nothing")")
  }

  @Test("the defaults of a profile are those of a microphone, and its name is the file's")
  func defaults() throws {
    var expected = LoadProfile.mic
    expected.name = "talk"
    #expect(try profile("{}") == expected)
  }

  @Test(
    "an error has the file, the line and the path",
    arguments: [
      ("{", #"some/talk.json:1: not JSON: string or '}' expected near end of file"#),
      ("[]", #"some/talk.json:1: profile: an object, not a list"#),
      (
        "{\"rate\": \"1kB\",\n \"talk\": {\n  \"length\": true}}",
        #"some/talk.json:3: profile.talk.length: a duration like "300ms", or one of {"uniform": …}, {"exponential": …}, {"lognormal": …}, {"list": …}, not true"#
      ),
      (
        "{\n\"stream_lenght\": \"1s\"}",
        #"some/talk.json:2: profile.stream_lenght: is an unknown key. The nearest is "stream_length""#
      ),
      (
        "{\"faults\": {\n\"a\": 1,\n\"slow_faction\": 1}}",
        #"some/talk.json:2: profile.faults.a: is an unknown key. The nearest is "stall""#
      ),
      ("{\"chunk\": 20}", #"some/talk.json:1: profile.chunk: a duration like "300ms", not 20"#),
      ("{\"chunk\": \"20\"}", #"some/talk.json:1: profile.chunk: a duration like "300ms", not "20""#),
      ("{\"chunk\": \"1us\"}", "some/talk.json:1: profile.chunk: a duration from 1ms to 1h, not 1us"),
      ("{\"jitter\": \"1s\"}", "some/talk.json:1: profile.jitter: a duration from 0ns to 100ms, not 1s"),
      ("{\"rate\": \"0B\"}", #"some/talk.json:1: profile.rate: bytes per second like "96kB", or "max", not "0B""#),
      ("{\"rate\": \"1PB\"}", #"some/talk.json:1: profile.rate: bytes per second like "96kB", or "max", not "1PB""#),
      ("{\"rate\": \"11GB\"}", #"some/talk.json:1: profile.rate: at most 10GB, not "11GB""#),
      (
        "{\"rate\": \"1GB\", \"chunk\": \"1h\"}",
        "some/talk.json:1: profile: has messages of 3.60 TB. The limit is 64 MiB"
      ),
      (
        "{\"rate\": \"1kB\",\n\"message\": \"1B\"}",
        #"some/talk.json:2: profile.message: excludes "rate", which determines the size together with "chunk""#
      ),
      (
        "{\"message\": [\"2B\", \"1B\"]}",
        #"some/talk.json:1: profile.message: a size like "48B", or two like ["30B", "60B"], the smaller one first"#
      ),
      ("{\"talk\": {\"length\": \"1s\"}}", #"some/talk.json:1: profile.talk: requires "silence""#),
      ("{\"silence\": {\n}}", "some/talk.json:1: profile.silence.length: is missing"),
      (
        "{\"think_time\": {\"exponentail\": \"1s\"}}",
        #"some/talk.json:1: profile.think_time.exponentail: is an unknown distribution. The nearest is "exponential""#
      ),
      (
        "{\"think_time\": {\"list\":\n[\"1s\",\n\"x\"]}}",
        #"some/talk.json:3: profile.think_time.list[1]: a duration like "300ms", not "x""#
      ),
      (
        "{\"think_time\": {\"list\": []}}", "some/talk.json:1: profile.think_time.list: a list of at least one duration"
      ),
      (
        "{\"faults\": {\"slow_fraction\": \"101%\"}}",
        #"some/talk.json:1: profile.faults.slow_fraction: a share like "5%" or 0.05, at most all, not "101%""#
      ),
      (
        "{\"body\": \"noise\"}",
        #"some/talk.json:1: profile.body: "zeros", "random", "pattern" or {"file": "PATH"}, not "noise""#
      ),
      ("{\"name\": \"a\", \"name\": \"b\"}", "some/talk.json:1: not JSON: duplicate object key near '\"name\"'"),
      ("{\"na\\\"me\": {}, \"body\":\n 1}", "some/talk.json:2: profile.body: "),
    ])
  func mistakes(_ text: String, _ message: String) throws {
    #expect(problem(text)?.hasPrefix(message) == true, "\(problem(text) ?? "nothing")")
  }
}
