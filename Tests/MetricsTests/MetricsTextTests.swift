// The page as Prometheus reads it: every line is checked against the format's grammar, and every value is read back.

import Metrics
import PropertyTesting
import Testing

@Suite("Prometheus' text format")
struct MetricsTextTests {
  @Test("each metric has its help, its type and its value, and whole numbers have no fraction")
  func figures() {
    var page = MetricsText()
    page.counter("a_bytes_total", "Bytes.", UInt64(1) << 52)
    page.gauge("b_seconds", "Seconds.", 0.25)
    page.gauge(
      "c", "By color.", [.init([.init("color", "red")], 1), .init([.init("color", "blue"), .init("n", "2")], -0.5)])
    #expect(
      page.text == """
        # HELP a_bytes_total Bytes.
        # TYPE a_bytes_total counter
        a_bytes_total 4503599627370496
        # HELP b_seconds Seconds.
        # TYPE b_seconds gauge
        b_seconds 0.25
        # HELP c By color.
        # TYPE c gauge
        c{color="red"} 1
        c{color="blue",n="2"} -0.5

        """)
  }

  @Test("a distribution has cumulative buckets, with the sum and the count, and a bound belongs to its bucket")
  func histogram() {
    var distribution = Distribution(bounds: [0.1, 1])
    for value in [0.05, 0.1, 0.5, 7] { distribution.record(value) }
    var page = MetricsText()
    page.histogram("d_seconds", "Delays.", distribution)
    #expect(
      page.text == """
        # HELP d_seconds Delays.
        # TYPE d_seconds histogram
        d_seconds_bucket{le="0.1"} 2
        d_seconds_bucket{le="1"} 3
        d_seconds_bucket{le="+Inf"} 4
        d_seconds_sum 7.65
        d_seconds_count 4

        """)
  }

  @Test("adding up partial counts equals one count", arguments: Seed.several(3))
  func addition(seed: Seed) {
    var random = seed.generator
    var (whole, parts) = (Distribution(), [Distribution(), Distribution()])
    for _ in 0..<1000 {
      // Sixteenths are exact, so sums do not depend on the order.
      let value = Double(Int.random(in: 0..<600, using: &random)) / 16
      whole.record(value)
      parts[Int.random(in: 0..<2, using: &random)].record(value)
    }
    var sum = parts[0]
    sum.add(parts[1])
    #expect(sum == whole)
  }

  @Test("backslashes, line feeds and quotation marks are escaped and restored", arguments: Seed.several(3))
  func escaping(seed: Seed) throws {
    var random = seed.generator
    let pieces = ["\\", "\n", "\"", "n", "é", "\u{1F600}", " ", "{", "}", ",", "=", "#"]
    for _ in 0..<500 {
      let value = (0..<Int.random(in: 0...8, using: &random)).map { _ in pieces.randomElement(using: &random) ?? "" }
        .joined()
      var page = MetricsText()
      page.gauge("x", value, [.init([.init("l", value), .init("m", "end")], 1)])
      let parsed = try ExpositionParser.parse(page.text)
      #expect(parsed.samples.first?.labels["l"] == value && parsed.samples.first?.labels["m"] == "end")
      #expect(parsed.help["x"] == value)
    }
  }

  @Test("NaN and infinite numbers have the format's notation")
  func numbers() throws {
    var page = MetricsText()
    page.gauge("a", "", .nan)
    page.gauge("b", "", .infinity)
    page.gauge("c", "", -.infinity)
    page.gauge("d", "", 1e-7)
    page.gauge("e", "", 1e300)
    #expect(page.text.contains("\na NaN\n") && page.text.contains("\nb +Inf\n") && page.text.contains("\nc -Inf\n"))
    let values = try ExpositionParser.parse(page.text).samples.map(\.value)
    #expect(values[3] == 1e-7 && values[4] == 1e300)
  }

  private static let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"

  @Test("a name begins with any letter or underscore, and continues with these and digits")
  func names() throws {
    var page = MetricsText()
    var names: [String] = []
    for first in Self.letters {
      for later in Self.letters + "0123456789" { names.append("\(first)\(later)") }
    }
    for name in names { page.gauge(name, "", [.init([.init(name, "1")], 1)]) }
    page.gauge("a:b", "", 2)
    let samples = try ExpositionParser.parse(page.text).samples
    #expect(samples.map(\.name) == names + ["a:b"])
    #expect(samples.dropLast().allSatisfy { $0.labels == [$0.name: "1"] })
  }

  @Test("an invalid Prometheus name ends the program")
  func wrongNames() async {
    await #expect(processExitsWith: .failure) {
      var page = MetricsText()
      page.gauge("0a", "", 1)
    }
    await #expect(processExitsWith: .failure) {
      var page = MetricsText()
      page.gauge("9a", "", 1)
    }
    await #expect(processExitsWith: .failure) {
      var page = MetricsText()
      page.gauge("a-b", "", 1)
    }
    await #expect(processExitsWith: .failure) {
      var page = MetricsText()
      page.gauge("a", "", [.init([.init("b:c", "1")], 1)])
    }
    await #expect(processExitsWith: .failure) {
      var page = MetricsText()
      page.gauge("", "", 1)
    }
  }
}
