// Quantities in profiles: strings with a unit, so that units are explicit.

package import JSONDocuments
internal import LoadReports

extension JSONMembers {
  /// Reads a duration, which keeps its default if omitted.
  mutating func duration(
    _ key: String, _ nanoseconds: inout Int64, in range: ClosedRange<Int64>
  ) throws(DocumentError) {
    var text = DurationText(nanoseconds: nanoseconds)
    guard try mapIfPresent(key, &text) else { return }
    guard range.contains(text.nanoseconds) else {
      throw error(
        "a duration from \(Quantity.text(nanoseconds: range.lowerBound)) to "
          + "\(Quantity.text(nanoseconds: range.upperBound)), not \(Quantity.text(nanoseconds: text.nanoseconds))",
        at: key)
    }
    nanoseconds = text.nanoseconds
  }

  /// Reads bytes, or bytes per second, which keep their default if omitted.
  mutating func bytes(_ key: String, _ count: inout UInt64, atLeast least: UInt64) throws(DocumentError) {
    var text = ByteText(count: count)
    guard try mapIfPresent(key, &text) else { return }
    guard text.count >= least else { throw error("a size like \"4kB\", not \"0B\"", at: key) }
    count = text.count
  }

  /// Reads a share, which keeps its default if omitted.
  mutating func share(_ key: String, _ share: inout Double) throws(DocumentError) {
    var text = ShareText(share: share)
    try mapIfPresent(key, &text)
    share = text.share
  }
}

/// `"300ms"`.
struct DurationText: JSONMapped {
  var nanoseconds: Int64

  init(nanoseconds: Int64) { self.nanoseconds = nanoseconds }

  var jsonValue: JSONValue { .string(Quantity.text(nanoseconds: nanoseconds)) }

  init(json: JSONNode) throws(DocumentError) {
    guard case .string(let text) = json.value, let value = Quantity.nanoseconds(text) else {
      throw json.error(expected: "a duration like \"300ms\"")
    }
    nanoseconds = value
  }
}

/// `"48B"`, at most 10 GB.
struct ByteText: JSONMapped {
  var count: UInt64

  init(count: UInt64) { self.count = count }

  var jsonValue: JSONValue { .string(Quantity.text(bytes: count)) }

  init(json: JSONNode) throws(DocumentError) {
    guard case .string(let text) = json.value, let value = Quantity.bytes(text) else {
      throw json.error(expected: "a size like \"4kB\"")
    }
    guard value <= 10_000_000_000 else { throw json.error(expected: "at most 10GB") }
    count = value
  }
}

/// `"96kB"`, or `"max"` for the maximum speed.
enum RateText: JSONMapped {
  case bytesPerSecond(UInt64)
  case unpaced

  var jsonValue: JSONValue {
    switch self {
    case .bytesPerSecond(let count): ByteText(count: count).jsonValue
    case .unpaced: .string("max")
    }
  }

  init(json: JSONNode) throws(DocumentError) {
    guard json.value != .string("max") else {
      self = .unpaced
      return
    }
    guard case .string(let text) = json.value, Quantity.bytes(text) ?? 0 > 0 else {
      throw json.error(expected: "bytes per second like \"96kB\", or \"max\"")
    }
    self = .bytesPerSecond(try ByteText(json: json).count)
  }
}

/// `"48B"`, or `["30B", "60B"]` for any size in this range. Never empty.
struct MessageSizeText: JSONMapped {
  var range: ClosedRange<Int>

  init(range: ClosedRange<Int>) { self.range = range }

  var jsonValue: JSONValue {
    let bounds = [range.lowerBound, range.upperBound].map { ByteText(count: UInt64($0)).jsonValue }
    return range.count == 1 ? bounds[0] : .array(bounds)
  }

  init(json: JSONNode) throws(DocumentError) {
    var bounds: [Int] = []
    if case .array = json.value {
      for element in try json.elements() { bounds.append(Int(clamping: try ByteText(json: element).count)) }
    } else {
      let size = Int(clamping: try ByteText(json: json).count)
      bounds = [size, size]
    }
    guard bounds.count == 2, bounds[0] >= 1, bounds[0] <= bounds[1] else {
      throw json.error("a size like \"48B\", or two like [\"30B\", \"60B\"], the smaller one first")
    }
    range = bounds[0]...bounds[1]
  }
}

/// `"5%"`, or `0.05`.
struct ShareText: JSONMapped {
  var share: Double

  init(share: Double) { self.share = share }

  var jsonValue: JSONValue { .number(share) }

  init(json: JSONNode) throws(DocumentError) {
    let share: Double? =
      switch json.value {
      case .string(let text): Quantity.share(text)
      case .number(let number): number
      case .integer(let number): Double(number)
      default: nil
      }
    guard let share, (0...1).contains(share) else {
      throw json.error(expected: "a share like \"5%\" or 0.05, at most all")
    }
    self.share = share
  }
}

/// A length, or `"endless"`.
struct StreamLength: JSONMapped {
  var length: LengthDistribution?

  init(length: LengthDistribution?) { self.length = length }

  var jsonValue: JSONValue { length?.jsonValue ?? .string("endless") }

  init(json: JSONNode) throws(DocumentError) {
    length = json.value == .string("endless") ? nil : try LengthDistribution(json: json)
  }
}

extension LengthDistribution: JSONMapped {
  package var jsonValue: JSONValue {
    func text(_ nanoseconds: Int64) -> JSONValue { DurationText(nanoseconds: nanoseconds).jsonValue }
    func object(_ key: String, _ value: JSONValue) -> JSONValue { .object([.init(key: key, value: value)]) }
    return switch self {
    case .fixed(let length): text(length)
    case .uniform(let range): object("uniform", .array([text(range.lowerBound), text(range.upperBound)]))
    case .exponential(let mean): object("exponential", text(mean))
    case .lognormal(let median, let sigma):
      object(
        "lognormal",
        .object([.init(key: "median", value: text(median)), .init(key: "sigma", value: .number(sigma))]))
    case .list(let lengths): object("list", .array(lengths.map(text)))
    }
  }

  /// A text is a fixed length. An object has one member, which names the kind.
  package init(json: JSONNode) throws(DocumentError) {
    if case .string = json.value {
      self = .fixed(try DurationText(json: json).nanoseconds)
      return
    }
    guard case .object(let members) = json.value, members.count == 1, let member = members.first else {
      throw json.error(
        expected:
          #"a duration like "300ms", or one of {"uniform": …}, {"exponential": …}, {"lognormal": …}, {"list": …}"#)
    }
    let node = JSONNode(value: member.value, path: json.path.appending(.key(member.key)))
    switch member.key {
    case "uniform":
      let bounds = try [DurationText](json: node).map(\.nanoseconds)
      guard bounds.count == 2, bounds[0] <= bounds[1] else {
        throw node.error("two durations like [\"1s\", \"3s\"], the shorter one first")
      }
      self = .uniform(bounds[0]...bounds[1])
    case "exponential": self = .exponential(mean: try DurationText(json: node).nanoseconds)
    case "lognormal": self = try Self.lognormal(node)
    case "list":
      let lengths = try [DurationText](json: node).map(\.nanoseconds)
      guard !lengths.isEmpty else { throw node.error("a list of at least one duration") }
      self = .list(lengths)
    default:
      let kinds = ["uniform", "exponential", "lognormal", "list"]
      throw node.error("is an unknown distribution. The nearest is \(Spelling.nearest(to: member.key, of: kinds))")
    }
  }

  private static func lognormal(_ node: JSONNode) throws(DocumentError) -> LengthDistribution {
    var member = try JSONMembers(reading: node)
    var median = DurationText(nanoseconds: 0)
    var sigma = 1.0
    try member("median", &median)
    try member("sigma", &sigma)
    try member.refuseUnknownKeys()
    guard (0...10).contains(sigma) else { throw member.error("a number from 0 to 10, not \(sigma)", at: "sigma") }
    return .lognormal(median: median.nanoseconds, sigma: sigma)
  }
}
