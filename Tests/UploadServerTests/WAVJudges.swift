// Checks WAV files with other programs.

import Glibc
import NetworkTesting

/// How many frames each program finds in a file; nil if it rejects the file.
struct WAVJudgement: Equatable, CustomStringConvertible {
  var ffprobe: Int?
  var sox: Int?
  /// The count of Python's `wave` module.
  var python: Int?

  /// - Parameter readsAll: whether to also run Python, and sox, which reads all of a file beyond 2 GiB.
  init(_ path: String, readsAll: Bool = true) throws {
    ffprobe = try Self.number(
      "ffprobe", ["-v", "error", "-show_entries", "stream=duration_ts", "-of", "csv=p=0", path])
    guard readsAll else { return }
    sox = try Self.number("soxi", ["-s", path])
    python = try Self.number(
      "python3", ["-c", "import sys, wave; print(wave.open(sys.argv[1]).getnframes())", path])
  }

  var description: String { "ffprobe \(ffprobe ?? -1), sox \(sox ?? -1), Python \(python ?? -1)" }

  private static func number(_ program: String, _ arguments: [String]) throws -> Int? {
    let scratch = TemporaryDirectory()
    let output = scratch.path + "/output"
    guard try Command.run(program, arguments, output: output) == 0 else { return nil }
    let text = try scratch.text("output")
    // The remaining output consists of warnings.
    return text.split(separator: "\n").compactMap { Int($0.trimmed) }.last
  }
}

extension Substring {
  fileprivate var trimmed: Substring { drop { $0 == " " }.prefix { $0 != " " && $0 != "\r" } }
}
