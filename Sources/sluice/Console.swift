// The two outputs: human-readable text on standard error, data and JSON on standard output.

internal import EventLoops
internal import Glibc
internal import JSONLines

/// Writes whole lines from any thread. On a terminal, it keeps a changing status of one or more lines below them.
///
/// A reader that disappears does not end the process. Output that cannot be written is dropped.
final class Console: Sendable {
  static let shared: Console = Console()

  private let people: OutputWriter = OutputWriter(descriptor: STDERR_FILENO) { count in
    "sluice: dropped \(count) line\(count == 1 ? "" : "s") of this output, because no program read it or its disk was full"
  }
  private let programs: OutputWriter = OutputWriter(descriptor: STDOUT_FILENO) { count in
    var line = JSONLine(event: "output-dropped")
    line.add("lines", count)
    line.add("time", WallClock.now.iso8601)
    return line.line
  } onFailure: { code in
    let reason = SystemError(operation: "write", code: code).reason
    let remedy = SystemError.remedy(forLimit: code) ?? "Free space on its disk."
    Console.shared.say("sluice: cannot write to standard output: \(reason). \(remedy)")
  }

  /// Whether a status line can change in place on standard error.
  static var hasStatusLine: Bool { isatty(STDERR_FILENO) == 1 && TerminalText.current.canRedraw }

  /// How human-readable text is adapted. A file or a pipe receives each character unchanged.
  private static let peopleText = isatty(STDERR_FILENO) == 1 ? TerminalText.current : nil
  private static let programsText = isatty(STDOUT_FILENO) == 1 ? TerminalText.current : nil

  /// From now on, no call waits for a reader. Lines that wait too long are dropped, counted, and reported in their
  /// place.
  func beginQueueing() throws(SystemError) {
    try people.begin()
    try programs.begin()
  }

  /// Waits until the queued lines are written, but not for a reader that has stopped. Call it before the process exits.
  func flush(patience: Duration = .milliseconds(500)) {
    if !programs.flush(patience: patience) {
      say("sluice: standard output is incomplete, because no program reads it")
    }
    _ = people.flush(patience: patience)
  }

  /// The error (errno) because of which standard output lacks a line and does not report it, or nil.
  var outputFailure: Int32? { programs.failure }

  /// The number of dropped lines of both outputs.
  var droppedCount: UInt64 { people.droppedCount.addingSaturated(programs.droppedCount) }

  /// Writes a line of human-readable text. The status moves below it.
  func say(_ line: String) {
    let line = Self.peopleText?.shown(line) ?? line
    people.update { $0.append(line: line) }
  }

  /// Replaces the status line. An empty line removes it.
  func show(status line: String) { show(status: line.isEmpty ? [] : [line]) }

  /// Replaces the status. No line may reach the terminal's last column, because it would wrap.
  func show(status lines: [String]) {
    let lines = Self.peopleText.map { text in lines.map(text.shown) } ?? lines
    people.update { $0.show(status: lines) }
  }

  /// Leaves the status in its place and continues below it.
  func keepStatus() { people.update { $0.keepStatus() } }

  /// Writes a line of data for programs.
  ///
  /// - Parameter isRoutine: whether it may be dropped first, because a later line repeats it.
  func put(_ line: String, isRoutine: Bool = false) {
    let line = Self.programsText?.shown(line) ?? line
    programs.update { $0.append(line: line, isRoutine: isRoutine) }
  }

  /// The terminal's width in columns, or 80 if it is unknown.
  static var width: Int {
    var size = winsize()
    return ioctl(STDERR_FILENO, UInt(TIOCGWINSZ), &size) == 0 && size.ws_col > 0 ? Int(size.ws_col) : 80
  }
}
