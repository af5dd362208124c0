// What follows from a broker's description of itself or of a stream.

import Testing

@testable import JetStream

@Suite("Descriptions by brokers")
struct BrokerAnswersTests {
  private func reply(_ text: String) throws -> APIReply { try APIReply(Array(text.utf8)) }

  @Test(
    "versions before 2.10.23 are outdated",
    arguments: [
      ("2.10.22", true), ("2.9.99", true), ("1.99.99", true), ("2.10", true), ("unknown", true), ("2.x.99", true),
      ("2.10.23", false), ("2.10.23-RC.1", false), ("2.10.100", false), ("2.11.0", false), ("10.0.0", false),
    ])
  func outdated(version: String, isOutdated: Bool) throws {
    let facts = try BrokerFacts(
      try reply("{\"server_name\":\"a\",\"server_id\":\"b\",\"version\":\"\(version)\"}"))
    #expect(facts.isOutdated == isOutdated)
  }

  @Test(
    "only a stream with several replicas has brokers that may not know it yet, and only old ones check too early",
    arguments: [nil, 1, 2, 3], [nil, "none", "s2"])
  func replicas(count: Int?, compression: String?) throws {
    let members = [count.map { "\"num_replicas\":\($0)" }, compression.map { "\"compression\":\"\($0)\"" }]
    let found = StreamConfiguration(try reply("{\(members.compactMap(\.self).joined(separator: ","))}")).publishing
    #expect(found.isReplicated == (count ?? 1 > 1))
    #expect(found.isBefore210 == (compression == nil))
    #expect(found.isCheckedTooEarly == (count ?? 1 > 1 && compression == nil))
  }

  @Test(
    "the document of a monitoring port is /varz, on port 8222 if the URL has none",
    arguments: [
      ("http://a", "http://a:8222/varz"), ("https://a", "https://a:8222/varz"), ("http://a:80", "http://a:80/varz"),
      ("http://a:1/b", "http://a:1/b/varz"), ("http://a/b/", "http://a:8222/b/varz"), ("ftp://a", nil),
      ("http://a?b", nil), ("http://a#b", nil), ("http://a:b@c", nil), ("http://a b", nil), ("a:8222", nil),
    ])
  func monitor(url: String, document: String?) {
    #expect(BrokerMonitor(url)?.document == document)
  }
}
