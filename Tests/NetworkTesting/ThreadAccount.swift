// The cost of an idle thread.

internal import Glibc

/// Reads a thread's statistics from /proc: proc(5).
public struct ThreadAccount: Sendable {
  private let directory: String

  /// The statistics of the calling thread.
  public init() {
    var target = [CChar](repeating: 0, count: 64)
    readlink("/proc/thread-self", &target, 63)
    directory = "/proc/" + String(decoding: target.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }

  /// How often it has gone to sleep, as at the end of every wake-up.
  public func sleepCount() throws -> Int {
    let text = String(decoding: try fileContents("\(directory)/status"), as: UTF8.self)
    for line in text.split(separator: "\n") where line.hasPrefix("voluntary_ctxt_switches:") {
      if let count = Int(line.split(separator: "\t").last ?? "") { return count }
    }
    throw TestFailure("no account of \(directory)")
  }

  /// `S` asleep, `R` running, …
  public func state() throws -> Character {
    let text = String(decoding: try fileContents("\(directory)/stat"), as: UTF8.self)
    // After the name, which is in parentheses and may contain anything.
    guard let end = text.lastIndex(of: ")"), let state = text[end...].dropFirst(2).first else {
      throw TestFailure("no account of \(directory)")
    }
    return state
  }
}

/// Raises the descriptor limit to its maximum, because thousands of connections need thousands.
public func raiseDescriptorLimit() throws {
  var limit = rlimit()
  guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { throw TestFailure("getrlimit") }
  limit.rlim_cur = limit.rlim_max
  guard setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { throw TestFailure("setrlimit") }
}
