// The command line of the benchmark, and how it prints numbers.

import Glibc

/// What a run moves, from the command line.
struct Settings: Sendable {
  /// Bytes moved by each side for each result, in all rounds together.
  var bytes = 4 << 30
  /// Pairs of rounds: many short ones, so that other work on the machine spoils a few pairs and not the median.
  var rounds = 65
  /// Size of the circular buffer and of the array, in bytes.
  var capacity = 1 << 20

  init(arguments: ArraySlice<String>) {
    var rest = arguments
    while let name = rest.popFirst() {
      guard let value = rest.popFirst().flatMap({ Int($0) }), value > 0 else { Self.endWithUsage() }
      switch name {
      case "--bytes": bytes = value
      case "--rounds": rounds = value
      case "--capacity": capacity = value
      default: Self.endWithUsage()
      }
    }
  }

  private static func endWithUsage() -> Never {
    print("usage: circular-buffer-benchmark [--bytes N] [--rounds N] [--capacity N]   (whole numbers above 0)")
    exit(64)
  }
}

extension Double {
  var twoDecimals: String {
    let hundredths = Int((self * 100).rounded())
    return "\(hundredths / 100).\(String(hundredths % 100 + 100).dropFirst())"
  }
}

extension String {
  func leftPadded(_ width: Int) -> String { String(repeating: " ", count: Swift.max(0, width - count)) + self }
}
