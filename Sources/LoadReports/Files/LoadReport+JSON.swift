// A report as a file: JSON with the unit in each name, for `sluice report`, for jq, and for later versions of Sluice.

public import JSONDocuments

extension LoadReport {
  /// The report as JSON, which ``init(json:file:)`` reads without loss.
  public var json: String { document(detail: .full).text }

  /// The same with only the quantiles of the intervals' histograms, for programs that draw it. It cannot be read again,
  /// because merging requires the histograms.
  public var summaryJSON: String { document(detail: .summary).text }

  enum Detail { case full, summary }

  func document(detail: Detail) -> JSONValue {
    guard case .object(var members) = jsonValue else { return .null }
    members.insert(.init(key: "sluice_load_report", value: .integer(Int64(Self.formatVersion))), at: 0)
    if detail == .summary, let index = members.firstIndex(where: { $0.key == "intervals" }) {
      members[index].value = intervals.summary
    }
    return .object(members)
  }

  /// Reads ``json``.
  ///
  /// - Parameters:
  ///   - text: the bytes of the file.
  ///   - file: the file's name for errors.
  /// - Throws: ``JSONDocuments/DocumentError`` when the text is not a report, or has a format that this version does
  ///   not support.
  public init(json text: [UInt8], file: String) throws(DocumentError) {
    let document = try JSONDocument(text, root: "report", file: file)
    self = try document.read { node throws(DocumentError) in
      let version = try node.members().first { $0.key == "sluice_load_report" }?.value
      guard let version else { throw node.error("is not a report of sluice load: it lacks \"sluice_load_report\"") }
      guard version == .integer(Int64(Self.formatVersion)) else {
        throw node.error(
          "is a report of format \(version.kind), and this version of sluice reads format \(Self.formatVersion) only")
      }
      return try LoadReport(json: node)
    }
  }
}

extension LoadReport: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("sluice_version", &sluiceVersion)
    try member("target", &target)
    try member("started_at", &startedAt)
    try member("measured_ns", &measured)
    try member("plan", &plan)
    try member("parts", &parts)
    try member("totals", &totals)
    try member("generator", &generator)
    try member("histograms", &histograms)
    try member("spread", &spread)
    try member("intervals", &intervals)
  }
}

extension LoadPlan: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("streams", &streams)
    try member("ramp_ns", &ramp)
    try member("stages", &stages)
    try member("duration_ns", &duration)
    try member("profile", &profile)
    try member("rate_bytes_per_second", &rate)
    try member("chunk_ns", &chunk)
    try member("body", &body)
    try member("resumable", &resumable)
    try member("request_per_message", &requestPerMessage)
    try member.optional("arrival_rate_per_second", &arrivalRate)
    try member.optional("maximum_under_way", &maximumUnderWay)
    try member("http_version", &httpVersion)
    try member.optional("streams_per_connection", &streamsPerConnection)
    try member.optional("drop_every_ns", &dropEvery)
    try member("slow_fraction", &slowFraction)
    try member.seed("seed", &seed)
  }
}

extension LoadPart: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("index", &index)
    try member("count", &count)
    try member.seed("seed", &seed)
    try member("host", &host)
    try member("cores", &cores)
    try member("threads", &threads)
    try member.optional("measured_ns", &measured)
    guard (1...Self.largestCount).contains(count), (1...count).contains(index) else {
      throw member.error(
        "is part \(index) of \(count): part numbers begin at 1, and there are at most \(Self.largestCount)",
        at: "index")
    }
  }
}

extension GeneratorFigures: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("user_ns", &userTime)
    try member("system_ns", &systemTime)
    try member("maximum_resident_bytes", &maximumResident)
    try member("busiest_loop", &busiestLoop)
    var isBottleneck = isBottleneck
    try member("is_bottleneck", &isBottleneck)
    try member("bottlenecks", &bottlenecks)
  }
}

extension JSONMembers {
  /// A seed has 64 bits, but most programs keep only 53 of a JSON number. So it is a string.
  mutating func seed(_ key: String, _ seed: inout UInt64) throws(DocumentError) {
    var text = String(seed)
    try self(key, &text)
    guard let value = UInt64(text) else { throw error("a whole number as a string, not \"\(text)\"", at: key) }
    seed = value
  }
}
