// sluice verify DIR

internal import EventLoops
internal import Glibc
internal import Recordings

enum Verify {
  static let syntax = CommandLineSyntax(
    name: "verify", summary: "Compares recordings with their sidecars.", operands: ["DIR"],
    options: [
      Option("json", "print one JSON object per finding, and one for the result"),
      Option("quiet", short: "q", "show no progress, and print nothing for unfinished recordings"),
    ],
    example: "sluice verify recordings")

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let signals: Signals
    do throws(SystemError) { signals = try Signals() } catch {
      throw CommandError(machine: error)
    }
    // Even the last line may wait for a reader. It must not be dropped, so it is not queued.
    do throws(CommandError) {
      return try signals.endProcess { () throws(CommandError) in try compare(values) }
    } catch {
      // The message of the error may wait for a reader, too.
      signals.release()
      throw error
    }
  }

  /// Compares the recordings, and prints each finding and the result.
  private static func compare(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let directory = values.operands[0]
    let isJSON = values.has("json")
    let showsProgress = Console.hasStatusLine && !values.has("quiet")
    var shown = MonotonicInstant.now
    do throws(SystemError) {
      let summary = try RecordingVerification(directory: directory).run(
        progress: { progress in
          guard showsProgress, MonotonicInstant.now - shown >= .milliseconds(100) else { return }
          shown = .now
          Console.shared.show(
            status: "\(Units.text(bytes: progress.read)) of \(Units.text(bytes: progress.total)) compared")
        },
        { finding in
          if !finding.kind.isProblem, values.has("quiet") { return }
          if isJSON {
            Console.shared.put(finding.jsonLine)
          } else {
            Console.shared.put("\(finding.path.shown): \(finding.kind.rawValue): \(finding.detail)")
          }
        })
      Console.shared.show(status: "")
      if isJSON { Console.shared.put(summary.jsonLine) } else { Console.shared.say(text(summary)) }
      return summary.problems == 0 ? .done : .dataLost
    } catch {
      let remedy =
        error.code == EACCES
        ? "Run the command as a user who may read it." : "Name the directory in which sluice serve stores recordings."
      throw CommandError(
        error.code == ENOENT || error.code == ENOTDIR ? .noInput : .inputOutput,
        "cannot read \(directory.shown): \(error.reason). \(remedy)")
    }
  }

  /// `3 recordings: 2 match their sidecars (1.20 GB), 1 problem`.
  private static func text(_ summary: RecordingVerification.Summary) -> String {
    func count(_ number: Int, _ noun: String) -> String { "\(number) \(noun)\(number == 1 ? "" : "s")" }
    return "\(count(summary.recordings, "recording")): \(summary.verified) match their sidecars "
      + "(\(Units.text(bytes: summary.bytes))), \(count(summary.problems, "problem"))"
  }
}
