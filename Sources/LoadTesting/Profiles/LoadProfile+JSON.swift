// A profile as a file. docs/load-profiles.md describes each key.

public import JSONDocuments
internal import LoadReports

extension LoadProfile {
  /// Reads a profile. Missing members are those of ``mic``.
  ///
  /// - Parameters:
  ///   - text: the bytes of the file.
  ///   - file: the file's name, for errors, and for the profile's name if it states none.
  /// - Throws: ``JSONDocuments/DocumentError`` for invalid JSON, unknown keys and invalid values.
  public init(json text: [UInt8], file: String) throws(DocumentError) {
    let document = try JSONDocument(text, root: "profile", file: file)
    let fileName = file.split(separator: "/").last.map(String.init) ?? file
    self = try document.read { node throws(DocumentError) in
      var members = try JSONMembers(reading: node)
      var profile = LoadProfile()
      profile.name = fileName.hasSuffix(".json") ? String(fileName.dropLast(5)) : fileName
      try profile.map(&members)
      return profile
    }
  }

  /// The profile as JSON, which ``init(json:file:)`` reads.
  public var json: String { jsonValue.text }
}

extension LoadProfile: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member.mapIfPresent("name", &name)
    try member.duration("chunk", &chunk, in: 1_000_000...3_600_000_000_000)
    try mapSize(&member)
    try member.duration("jitter", &jitter, in: 0...chunk)
    try mapTurns(&member)
    try member.optional("bursts", &bursts)
    var length = StreamLength(length: streamLength)
    try member.mapIfPresent("stream_length", &length)
    streamLength = length.length
    try member.mapIfPresent("think_time", &thinkTime)
    try member.mapIfPresent("faults", &faults)
    try member.mapIfPresent("body", &body)
    try member.refuseUnknownKeys()
    let largest = Double(messageSize) * Double(bursts?.factor ?? 1)
    if largest > Double(Self.largestMessage) {
      throw member.error("has messages of \(Figure.text(bytes: UInt64(largest))). The limit is 64 MiB")
    }
  }

  private static let largestMessage = 64 << 20

  private mutating func mapSize(_ member: inout JSONMembers) throws(DocumentError) {
    var rate: RateText?
    var message: MessageSizeText?
    switch size {
    case .rate(let value): rate = .bytesPerSecond(value)
    case .bytes(let range): message = MessageSizeText(range: range)
    case .unpaced(let count): (rate, message) = (.unpaced, MessageSizeText(range: count...count))
    }
    let former = size
    try member.optional("rate", &rate)
    try member.optional("message", &message)
    switch (rate, message?.range) {
    case (nil, nil): size = former
    case (nil, let range?): size = .bytes(range)
    case (.bytesPerSecond(let value), nil): size = .rate(value)
    case (.bytesPerSecond, _?):
      throw member.error("excludes \"rate\", which determines the size together with \"chunk\"", at: "message")
    case (.unpaced, nil): size = .unpaced(65536)
    case (.unpaced, let range?):
      guard range.count == 1 else {
        throw member.error("one size like \"64kB\" where the rate is \"max\"", at: "message")
      }
      size = .unpaced(range.lowerBound)
    }
  }

  private mutating func mapTurns(_ member: inout JSONMembers) throws(DocumentError) {
    var talk = turns.map { Talk(length: $0.talk) }
    var silence = turns.map { Silence(length: $0.silence, rate: $0.silenceRate) }
    try member.optional("talk", &talk)
    try member.optional("silence", &silence)
    switch (talk, silence) {
    case (nil, nil): turns = nil
    case (let talk?, let silence?):
      turns = Turns(talk: talk.length, silence: silence.length, silenceRate: silence.rate)
    case (_?, nil): throw member.error("requires \"silence\"", at: "talk")
    case (nil, _?): throw member.error("requires \"talk\"", at: "silence")
    }
  }
}

private struct Talk: JSONObject {
  var length = LengthDistribution.fixed(0)

  init() {}
  init(length: LengthDistribution) { self.length = length }

  mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("length", &length)
    try member.refuseUnknownKeys()
  }
}

private struct Silence: JSONObject {
  var length = LengthDistribution.fixed(0)
  var rate: UInt64 = 0

  init() {}
  init(length: LengthDistribution, rate: UInt64) {
    self.length = length
    self.rate = rate
  }

  mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("length", &length)
    try member.bytes("rate", &rate, atLeast: 0)
    try member.refuseUnknownKeys()
  }
}

extension LoadProfile.Bursts: JSONObject {
  package init() { self.init(every: .fixed(0), length: .fixed(0), factor: 10) }

  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("every", &every)
    try member("length", &length)
    try member.mapIfPresent("factor", &factor)
    guard (2...1000).contains(factor) else {
      throw member.error("a whole number from 2 to 1000, not \(factor)", at: "factor")
    }
    try member.refuseUnknownKeys()
  }
}

extension LoadProfile.Faults: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member.optional("drop_every", &dropEvery)
    try member.share("slow_fraction", &slowFraction)
    try member.bytes("slow_rate", &slowRate, atLeast: 1)
    try member.optional("stall", &stalls)
    try member.refuseUnknownKeys()
  }
}

extension LoadProfile.Stalls: JSONObject {
  package init() { self.init(every: .fixed(0), length: .fixed(0)) }

  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("every", &every)
    try member("length", &length)
    try member.refuseUnknownKeys()
  }
}

extension LoadProfile.Body: JSONMapped {
  private static let names: [(String, LoadProfile.Body)] = [
    ("zeros", .zeros), ("random", .random), ("pattern", .pattern),
  ]

  package var jsonValue: JSONValue {
    if case .file(let path) = self { return .object([.init(key: "file", value: .string(path))]) }
    return .string(Self.names.first { $0.1 == self }?.0 ?? "")
  }

  package init(json: JSONNode) throws(DocumentError) {
    if case .string(let text) = json.value, let body = Self.names.first(where: { $0.0 == text })?.1 {
      self = body
    } else if case .object = json.value {
      var member = try JSONMembers(reading: json)
      var path = ""
      try member("file", &path)
      try member.refuseUnknownKeys()
      self = .file(path)
    } else {
      throw json.error(expected: #""zeros", "random", "pattern" or {"file": "PATH"}"#)
    }
  }
}
