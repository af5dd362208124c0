// Checks WAV files with other programs.

import Glibc
import NetworkTesting

/// How many frames each program finds in a file; nil if it rejects the file.
struct WAVJudgement: Equatable, CustomStringConvertible {
  var ffprobe: Int?
  var sox: Int?
  /// The count of Python's `wave` module.
  var python: Int?

  /// - Parameter readsAll: whether to also run Python, and to give sox the whole file. sox reads all of a file beyond 2
  ///   GiB, which takes a minute, but finds the length in the header. So it gets the beginning of the file instead.
  init(_ path: String, readsAll: Bool = true) throws {
    ffprobe = try Self.number(
      "ffprobe", ["-v", "error", "-show_entries", "stream=duration_ts", "-of", "csv=p=0", path])
    guard readsAll else {
      let scratch = TemporaryDirectory()
      let start = scratch.path + "/start.wav"
      guard try Command.run("head", ["-c", "4096", path], output: start) == 0 else { throw TestFailure("head \(path)") }
      sox = try Self.number("soxi", ["-s", start])
      return
    }
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

/// The duration in seconds that headless Chromium finds for each file, from its header; NaN for a file that it rejects.
func chromiumDurations(_ paths: [String]) throws -> [Double] {
  let scratch = TemporaryDirectory()
  let elements = paths.map { "<audio preload=metadata src=\"file://\($0)\"></audio>" }.joined()
  // The page is loaded when the metadata of each element is.
  let page = """
    <!doctype html><title>loading</title>\(elements)
    <script>addEventListener('load',()=>{
    document.title='found '+[...document.querySelectorAll('audio')].map(a=>a.duration).join(' ')})</script>
    """
  try scratch.write("page.html", Array(page.utf8))
  let chromium = try TestProcess(
    "timeout",
    [
      "-s", "KILL", "120", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
      "--no-first-run", "--user-data-dir=\(scratch.path)/profile", "--dump-dom", "file://\(scratch.path)/page.html",
    ])
  let status = try chromium.wait()
  let document = chromium.output.joined(separator: "\n")
  guard status == 0, let start = document.firstRange(of: "<title>found ") else {
    throw TestFailure(
      "chromium (Debian package chromium) ended with \(status)\n\(document)\n\(chromium.errors.suffix(20))")
  }
  return document[start.upperBound...].prefix { $0 != "<" }.split(separator: " ").map { Double($0) ?? .nan }
}

extension Substring {
  fileprivate var trimmed: Substring { drop { $0 == " " }.prefix { $0 != " " && $0 != "\r" } }
}
