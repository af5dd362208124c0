// When streams stood still. Thousands of overlapping interruptions are combined, so that a person can read them.

package import JSONDocuments

/// A continuous time in which at least one stream had lost its connection and had no acknowledgement since.
package struct LoadOutage: Equatable, Sendable {
  /// Nanoseconds on the run's clock.
  package var start: Int64 = 0
  package var end: Int64 = 0
  /// The number of interruptions in it.
  package var streams: UInt64 = 0
  /// The class of its errors. If there are several, the first by name.
  package var cause = ""

  package init() {}

  package init(_ range: Range<Int64>, cause: String) {
    (start, end, streams) = (range.lowerBound, range.upperBound, 1)
    self.cause = cause
  }

  var length: Int64 { end - start }
}

/// The outages of a run, in order and without overlap. A value of at most ``limit`` outages. If there are more, those
/// nearest to each other are combined.
package struct OutageLedger: Equatable, Sendable {
  static let limit = 100

  package private(set) var outages: [LoadOutage] = []

  package init() {}

  /// In any order.
  init(_ outages: [LoadOutage]) {
    for outage in outages { add(outage) }
  }

  /// The longest one, and among equals the first.
  var longest: LoadOutage? { outages.max { ($0.length, $1.start) < ($1.length, $0.start) } }

  package mutating func add(_ outage: LoadOutage) {
    var joined = outage
    joined.end = max(outage.start, outage.end)
    // Sorted by starts and also by ends.
    let first = outages.firstIndex { $0.end >= joined.start } ?? outages.count
    var last = first
    while last < outages.count, outages[last].start <= joined.end {
      joined.absorb(outages[last])
      last += 1
    }
    outages.replaceSubrange(first..<last, with: CollectionOfOne(joined))
    if outages.count > Self.limit { joinNearest() }
  }

  mutating func merge(_ other: OutageLedger) {
    for outage in other.outages { add(outage) }
  }

  private mutating func joinNearest() {
    let nearest = (1..<outages.count).min {
      outages[$0].start - outages[$0 - 1].end < outages[$1].start - outages[$1 - 1].end
    }
    guard let nearest else { return }
    outages[nearest - 1].absorb(outages[nearest])
    outages.remove(at: nearest)
  }
}

extension LoadOutage {
  fileprivate mutating func absorb(_ other: LoadOutage) {
    start = min(start, other.start)
    end = max(end, other.end)
    streams += other.streams
    cause = min(cause, other.cause)
  }
}

extension LoadOutage: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("start_ns", &start)
    try member("end_ns", &end)
    try member("streams", &streams)
    try member("cause", &cause)
  }
}
