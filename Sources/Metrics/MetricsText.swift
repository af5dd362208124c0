// The text for Prometheus, with the name, kind, description and value of every metric.
//
// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format No library is used: Prometheus' own
// clients are for Go, Java, Python and Rust, and Swift's (swift-prometheus) depends on further packages.

/// A page in Prometheus' text exposition format, version 0.0.4. A value that is built for each request.
///
///     var page = MetricsText()
///     page.counter("sluice_sent_bytes_total", "Bytes passed to the network.", 4711)
///     page.gauge("sluice_connected", "Whether a request is in progress.", isConnected ? 1 : 0)
///     answer(page.text)
///
/// Names follow Prometheus' rules: base units (seconds, bytes) in the name, and `_total` at the end of a counter. The
/// samples of a metric are adjacent, so each name is used only once.
public struct MetricsText: Sendable {
  /// The page's `Content-Type`.
  public static let mediaType = "text/plain; version=0.0.4; charset=utf-8"

  /// A label and its value. The value is any text.
  public struct Label: Sendable, Equatable {
    /// The name: a letter or an underscore first, then letters, digits and underscores.
    public let name: String
    /// The value; any text.
    public let value: String
    /// Creates a label with a value.
    public init(_ name: String, _ value: String) {
      self.name = name
      self.value = value
    }
  }

  /// One of several samples of a metric, with its labels.
  public struct Sample: Sendable {
    /// The labels that distinguish the sample from the others of its metric.
    public let labels: [Label]
    /// The value.
    public let value: Double
    /// Creates a sample with these labels.
    public init(_ labels: [Label], _ value: Double) {
      self.labels = labels
      self.value = value
    }
  }

  /// The page so far. It ends with a line feed, as the format requires.
  public private(set) var text = ""
  private var names: Set<String> = []

  /// Creates a page without metrics.
  public init() {}

  /// Adds a counter, which only grows, from 0 at the start of the process.
  public mutating func counter(_ name: String, _ help: String, _ value: Double) {
    counter(name, help, [Sample([], value)])
  }

  /// Adds a counter with an exact value. A `Double` is exact up to 2^53.
  public mutating func counter(_ name: String, _ help: String, _ value: UInt64) {
    counter(name, help, Double(value))
  }

  /// Adds a counter with a sample for each of several sets of labels.
  public mutating func counter(_ name: String, _ help: String, _ samples: [Sample]) {
    precondition(name.hasSuffix("_total"), "the name of a counter must end in _total")
    begin(name, help, "counter")
    for sample in samples { add(name, sample.labels, sample.value) }
  }

  /// Adds a gauge, which can go up and down.
  public mutating func gauge(_ name: String, _ help: String, _ value: Double) {
    gauge(name, help, [Sample([], value)])
  }

  /// Adds a gauge with a sample for each of several sets of labels.
  public mutating func gauge(_ name: String, _ help: String, _ samples: [Sample]) {
    begin(name, help, "gauge")
    for sample in samples { add(name, sample.labels, sample.value) }
  }

  /// Adds a histogram.
  public mutating func histogram(_ name: String, _ help: String, _ distribution: Distribution) {
    begin(name, help, "histogram")
    var below: UInt64 = 0
    for (bound, count) in zip(distribution.bounds, distribution.counts) {
      below += count
      add("\(name)_bucket", [Label("le", Self.number(bound))], Double(below))
    }
    add("\(name)_bucket", [Label("le", "+Inf")], Double(distribution.count))
    add("\(name)_sum", [], distribution.sum)
    add("\(name)_count", [], Double(distribution.count))
  }

  // MARK: Lines

  private mutating func begin(_ name: String, _ help: String, _ type: String) {
    // Names are constants in the program, so the first test that requests the page finds an invalid one.
    precondition(Self.isName(name), "\(name) is not a valid metric name")
    precondition(names.insert(name).inserted, "\(name) is already on the page")
    text += "# HELP \(name) \(Self.escaped(help, quotes: false))\n# TYPE \(name) \(type)\n"
  }

  private mutating func add(_ name: String, _ labels: [Label], _ value: Double) {
    text += name
    if !labels.isEmpty {
      let pairs = labels.map { label in
        precondition(Self.isLabelName(label.name), "\(label.name) is not a valid label name")
        return "\(label.name)=\"\(Self.escaped(label.value, quotes: true))\""
      }
      text += "{" + pairs.joined(separator: ",") + "}"
    }
    text += " \(Self.number(value))\n"
  }

  /// `[a-zA-Z_:][a-zA-Z0-9_:]*`
  private static func isName(_ text: String) -> Bool {
    isLabelName(String(text.map { $0 == ":" ? "_" : $0 }))
  }

  /// `[a-zA-Z_][a-zA-Z0-9_]*`
  private static func isLabelName(_ text: String) -> Bool {
    guard let first = text.utf8.first, !(0x30...0x39).contains(first) else { return false }
    return text.utf8.allSatisfy { octet in
      (0x30...0x39).contains(octet) || (0x41...0x5A).contains(octet) || (0x61...0x7A).contains(octet) || octet == 0x5F
    }
  }

  /// A backslash and a line feed are escaped everywhere, and a quotation mark only within quotation marks.
  private static func escaped(_ text: String, quotes: Bool) -> String {
    var result = ""
    for scalar in text.unicodeScalars {
      switch scalar {
      case "\\": result += "\\\\"
      case "\n": result += "\\n"
      case "\"" where quotes: result += "\\\""
      default: result.unicodeScalars.append(scalar)
      }
    }
    return result
  }

  /// The number in the format of Go's ParseFloat. Whole numbers have no fraction.
  private static func number(_ value: Double) -> String {
    if value.isNaN { return "NaN" }
    if value.isInfinite { return value < 0 ? "-Inf" : "+Inf" }
    if let whole = Int64(exactly: value), whole.magnitude < 1 << 53 { return String(whole) }
    return "\(value)"
  }
}
