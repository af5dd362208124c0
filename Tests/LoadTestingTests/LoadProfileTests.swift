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
