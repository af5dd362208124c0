// The files that --json, --csv and --html name. A run of hours must not lose one of them because of another.

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
    if values["json"] == "-", values["csv"] == "-" {
      throw .usage("--json - and --csv - both write to standard output. Name a file for one of them.")
    }
    for option in ["json", "csv", "html"] {
      if let path = values[option] { try checkWritable(path, option) }
    }
  }

  private static func checkWritable(_ path: String, _ option: String) throws(CommandError) {
    guard path != "-" else { return }
    var status = stat()
    if path.hasSuffix("/") || stat(path, &status) == 0 && status.st_mode & S_IFMT == S_IFDIR {
      throw CommandError(.inputOutput, "cannot write --\(option) \(path.shown): it is a directory. Choose a file.")
    }
    let folder = path.lastIndex(of: "/").map { $0 == path.startIndex ? "/" : String(path[..<$0]) } ?? "."
    guard access(folder, W_OK) == 0 || access(path, W_OK) == 0 else {
      throw CommandError(
        .inputOutput,
        "cannot write --\(option) \(path.shown): \(String(cString: strerror(errno))). Choose another file.")
    }
  }
}
