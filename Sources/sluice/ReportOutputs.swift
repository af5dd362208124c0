// The files that --json, --csv and --html name. A run of hours must not lose one of them because of another.

internal import EventLoops
internal import Glibc
internal import LoadReports

extension Report {
  /// A path, or nil if there is none, and the text for it.
  typealias Output = (path: String?, text: () -> String)

  /// The outputs of a single report. The one from which the others can be made again comes first.
  static func outputs(
    of report: LoadReport, _ values: CommandLineSyntax.Values, judgedBy thresholds: [Threshold]
  ) -> [Output] {
    [
      (values["json"], { report.json }), (values["csv"], { report.csv }),
      (values["html"], { report.html(judgedBy: thresholds) }),
    ]
  }

  /// Writes each output, even if another one cannot be written, and then judges the run.
  ///
  /// - Parameter judge: prints the judgement, and returns its exit code.
  /// - Throws: the first ``CommandError`` of an output, after the judgement. The others are printed.
  static func write(_ outputs: [Output], thenJudge judge: () -> ExitCode) throws(CommandError) -> ExitCode {
    var first: CommandError?
    for (path, text) in outputs {
      guard let path else { continue }
      do throws(CommandError) {
        try ReplacedFile.write(text(), to: path)
      } catch {
        if first == nil { first = error } else { Console.shared.say("sluice: \(error.message)") }
      }
    }
    let code = judge()
    if let first { throw first }
    return code
  }

  // MARK: Before the run

  /// - Throws: ``CommandError`` if an output cannot be written. Call it before any work.
  static func checkOutputs(_ values: CommandLineSyntax.Values) throws(CommandError) {
    for (first, second) in [("json", "csv"), ("json", "html"), ("csv", "html")] {
      guard let path = values[first], let other = values[second] else { continue }
      if path == "-", other == "-" {
        throw .usage("--\(first) - and --\(second) - both write to standard output. Name a file for one of them.")
      }
      if path != "-", other != "-", let file = replacedFile(path), file == replacedFile(other) {
        throw .usage(
          "--\(first) \(path.shown) and --\(second) \(other.shown) are the same file. Choose another file for one.")
      }
    }
    for option in ["json", "csv", "html"] {
      if let path = values[option] { try checkWritable(path, option) }
    }
  }

  /// The path of the file that an output replaces, without links and `..`. Nil for a terminal, a FIFO or a device,
  /// because it accepts several outputs.
  private static func replacedFile(_ path: String) -> String? {
    var status = stat()
    if stat(path, &status) == 0 { return status.st_mode & S_IFMT == S_IFREG ? ReplacedFile.resolved(path) : nil }
    let name = path.lastIndex(of: "/").map { String(path[path.index(after: $0)...]) } ?? path
    return "\(ReplacedFile.resolved(folder(of: path)))/\(name)"
  }

  private static func folder(of path: String) -> String {
    path.lastIndex(of: "/").map { $0 == path.startIndex ? "/" : String(path[..<$0]) } ?? "."
  }

  private static func checkWritable(_ path: String, _ option: String) throws(CommandError) {
    guard path != "-" else { return }
    var status = stat()
    if path.hasSuffix("/") || stat(path, &status) == 0 && status.st_mode & S_IFMT == S_IFDIR {
      throw CommandError(.inputOutput, "cannot write --\(option) \(path.shown): it is a directory. Choose a file.")
    }
    do throws(SystemError) {
      try ReplacedFile.check(path)
    } catch {
      let remedy = SystemError.remedy(forLimit: error.code) ?? "Choose another file."
      throw CommandError(.inputOutput, "cannot write --\(option) \(path.shown): \(error.reason). \(remedy)")
    }
  }
}
