// The resources of a process, and whether they grow.

internal import Glibc
internal import NetworkTesting

/// One sample of a process.
package struct ProcessSample: Sendable {
  /// Simulated hours since the run began.
  package var hour: Double
  /// When the process began, because a killed server has a successor.
  package var birth: Double
  /// The resident memory in bytes, in total and without file-backed pages.
  package var resident: Int
  package var anonymous: Int
  package var descriptors: Int
  /// The number of descriptors that are timers.
  package var timers: Int
  package var threads: Int

  /// In simulated hours.
  var age: Double { hour - birth }

  /// The lowest of several samples, because temporary resources of a request do not count.
  static func take(_ process: Int32, hour: Double, birth: Double, looks: Int, between: () -> Void) throws
    -> ProcessSample
  {
    var least = try ProcessSample(process, hour: hour, birth: birth)
    for _ in 1..<looks {
      between()
      let next = try ProcessSample(process, hour: hour, birth: birth)
      least.resident = min(least.resident, next.resident)
      least.anonymous = min(least.anonymous, next.anonymous)
      least.descriptors = min(least.descriptors, next.descriptors)
      least.timers = min(least.timers, next.timers)
      least.threads = min(least.threads, next.threads)
    }
    return least
  }

  private init(_ process: Int32, hour: Double, birth: Double) throws {
    (self.hour, self.birth) = (hour, birth)
    let status = String(decoding: try fileContents("/proc/\(process)/status"), as: UTF8.self)
    func field(_ name: String) throws -> Int {
      guard let line = status.split(separator: "\n").first(where: { $0.hasPrefix(name + ":") }),
        let value = line.split(whereSeparator: { $0 == "\t" || $0 == " " }).dropFirst().first.flatMap({ Int($0) })
      else { throw TestFailure("/proc/\(process)/status has no \(name)") }
      return value
    }
    resident = try field("VmRSS") << 10
    anonymous = try field("RssAnon") << 10
    threads = try field("Threads")
    let open = try fileNames(in: "/proc/\(process)/fdinfo")
    descriptors = open.count
    // Some may be closed by now.
    timers = open.count { name in
      (try? fileContents("/proc/\(process)/fdinfo/\(name)")).map {
        String(decoding: $0, as: UTF8.self).contains("it_interval")
      } ?? false
    }
  }

  /// For tests of the judge.
  package init(
    hour: Double, birth: Double = 0, resident: Int = 0, anonymous: Int = 0, descriptors: Int = 0, timers: Int = 0,
    threads: Int = 0
  ) {
    (self.hour, self.birth, self.resident, self.anonymous) = (hour, birth, resident, anonymous)
    (self.descriptors, self.timers, self.threads) = (descriptors, timers, threads)
  }
}

/// The development of a process's figure over a run.
package struct Trend: Sendable {
  let first: Int
  let last: Int
  let least: Int
  let most: Int
  /// By the line through the samples, over the longest observed lifetime of one process.
  package let growth: Double

  /// The line is Theil and Sen's: its slope is the median of the slopes between all pairs of samples, so a peak has
  /// little effect. If there were several processes, only samples of the same one are compared.
  package init?(_ samples: [ProcessSample], _ figure: (ProcessSample) -> Int) {
    guard samples.count > 2 else { return nil }
    let values = samples.map(figure)
    var slopes: [Double] = []
    var span = 0.0
    for (index, a) in samples.enumerated() {
      for b in samples[(index + 1)...] where b.birth == a.birth && b.hour > a.hour {
        span = max(span, b.hour - a.hour)
        slopes.append(Double(figure(b) - figure(a)) / (b.hour - a.hour))
      }
    }
    slopes.sort()
    (self.first, self.last) = (values[0], values[values.count - 1])
    // There are more than two.
    (least, most) = (values.min() ?? 0, values.max() ?? 0)
    growth = slopes.isEmpty ? 0 : slopes[slopes.count / 2] * span
  }
}
