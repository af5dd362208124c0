// Histograms as JSON, with the buckets for merging and the quantiles for readers.

package import JSONDocuments

extension LatencyHistogram: JSONMapped {
  /// `buckets` lists runs: the number of the first bucket, its count, and those of the buckets after it.
  package var jsonValue: JSONValue {
    var members = summary
    guard !isEmpty else { return .object(members) }
    var runs: [[JSONValue]] = []
    var expected: Int?
    for (bucket, count) in buckets {
      if bucket != expected { runs.append([.integer(Int64(bucket))]) }
      runs[runs.count - 1].append(count.jsonValue)
      expected = bucket + 1
    }
    members.append(.init(key: "above_range", value: aboveRangeCount.jsonValue))
    members.append(.init(key: "buckets", value: .array(runs.map { .array($0) })))
    return .object(members)
  }

  /// Everything except the buckets. The quantiles and the mean are not read, because they follow from the rest.
  var summary: [JSONValue.Member] {
    var members = [JSONValue.Member(key: "count", value: count.jsonValue)]
    let figures = [
      ("sum", isEmpty ? nil : sum), ("min", min), ("mean", mean), ("p50", quantile(0.5)), ("p90", quantile(0.9)),
      ("p99", quantile(0.99)), ("p999", quantile(0.999)), ("max", max),
    ]
    for case (let key, let value?) in figures { members.append(.init(key: key, value: value.jsonValue)) }
    return members
  }

  package init(json: JSONNode) throws(DocumentError) {
    var member = try JSONMembers(reading: json)
    var count: UInt64 = 0
    try member("count", &count)
    self.init()
    guard count > 0 else { return }
    var (sum, min, max): (Int64, Int64, Int64) = (0, 0, 0)
    var aboveRange: UInt64 = 0
    var runs: [[UInt64]] = []
    try member("sum", &sum)
    try member("min", &min)
    try member("max", &max)
    try member("above_range", &aboveRange)
    try member("buckets", &runs)
    var buckets: [(bucket: Int, count: UInt64)] = []
    for run in runs {
      guard let first = run.first, first < UInt64(Self.bucketCount) else { throw json.error("has no such bucket") }
      for (offset, count) in run.dropFirst().enumerated() where count > 0 {
        buckets.append((Int(first) + offset, count))
      }
    }
    guard
      let histogram = LatencyHistogram(buckets: buckets, sum: sum, min: min, max: max, aboveRangeCount: aboveRange),
      histogram.count == count
    else { throw json.error("contradicts itself: its count, its smallest or its largest value is not in its buckets") }
    self = histogram
  }
}

extension LoadHistograms: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    for measure in LoadMeasure.allCases {
      try member(measure.jsonKey, &self[measure])
    }
  }
}

extension LoadMeasure {
  var jsonKey: String {
    (self == .acknowledgedSlow ? "acknowledged_slow" : rawValue) + (isDelay ? "_ns" : "_bytes")
  }
}

extension StreamSpread: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("mean_delay_ns", &meanDelay)
    try member("maximum_delay_ns", &maximumDelay)
    try member("goodput_bytes_per_second", &goodput)
    try member("interruptions", &interruptions)
    try member("worst", &worst)
  }
}

extension StreamRow: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("index", &index)
    try member("started_ns", &startedAt)
    try member("lasted_ns", &lasted)
    try member("outcome", &outcome)
    try member.optional("mean_delay_ns", &meanDelay)
    try member.optional("maximum_delay_ns", &maximumDelay)
    try member("offered_bytes", &offered)
    try member("acknowledged_bytes", &acknowledged)
    try member("interruptions", &interruptions)
  }
}

extension StreamOutcome: JSONMapped {
  package var jsonValue: JSONValue { .string(rawValue) }
  package init(json: JSONNode) throws(DocumentError) {
    guard case .string(let text) = json.value, let outcome = StreamOutcome(rawValue: text) else {
      throw json.error(expected: Self.allCases.map { "\"\($0.rawValue)\"" }.joined(separator: " or "))
    }
    self = outcome
  }
}

extension IntervalSeries: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    var (length, seconds) = (length, seconds)
    var intervals = intervals
    try member("length_ns", &length)
    try member("seconds", &seconds)
    try member("rows", &intervals)
    guard let series = IntervalSeries(length: length, seconds: seconds, intervals: intervals) else {
      throw member.error("has not as many rows as its seconds need")
    }
    self = series
  }

  /// Without the buckets of the histograms.
  var summary: JSONValue {
    let rows = intervals.enumerated().map { index, interval -> JSONValue in
      guard case .object(let members) = interval.jsonValue else { return .null }
      return .object(
        [.init(key: "start_ns", value: start(of: index).jsonValue)]
          + members.map { member in
            switch member.key {
            case "acknowledged_delay_ns": .init(key: member.key, value: .object(interval.acknowledgedDelay.summary))
            case "lateness_ns": .init(key: member.key, value: .object(interval.lateness.summary))
            default: member
            }
          })
    }
    return .object([.init(key: "length_ns", value: length.jsonValue), .init(key: "rows", value: .array(rows))])
  }
}

extension LoadInterval: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("live", &live)
    try member("connecting", &connecting)
    try member.optional("fewest_live", &fewestAfterLoss)
    try member("offered_bytes", &offered)
    try member("sent_bytes", &sent)
    try member("acknowledged_bytes", &acknowledged)
    try member("interruptions", &interruptions)
    try member("errors", &errors)
    try member("processor_ns", &processorTime)
    try member("acknowledged_delay_ns", &acknowledgedDelay)
    try member("lateness_ns", &lateness)
  }
}
