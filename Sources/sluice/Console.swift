// The two outputs: people's text on standard error, data and JSON on standard output.

internal import EventLoops
internal import Glibc
internal import JSONLines

/// Writes whole lines from any thread, and keeps a changing status of one or more lines below them on a terminal.
///
/// A reader that goes away ends nothing: what cannot be written is dropped.
final class Console: Sendable {
  static let shared = Console()

  private let people = OutputWriter(descriptor: STDERR_FILENO) { count in
    "sluice: dropped \(count) line\(count == 1 ? "" : "s") of this output, because nothing read it"
  }
  private let programs = OutputWriter(descriptor: STDOUT_FILENO) { count in
    var line = JSONLine(event: "output-dropped")
    line.add("lines", count)
    line.add("time", WallClock.now.iso8601)
    return line.line
  }

  /// Whether a status line can change in place on standard error.
  static var hasStatusLine: Bool { isatty(STDERR_FILENO) == 1 && TerminalText.current.canRedraw }

  /// What is shown to a person: a file or a pipe gets each character as it is.
  private static let peopleText = isatty(STDERR_FILENO) == 1 ? TerminalText.current : nil
  private static let programsText = isatty(STDOUT_FILENO) == 1 ? TerminalText.current : nil

  /// From now on no call waits for a reader. Lines that wait too long for one are dropped, counted, and reported in
  /// their place.
  func beginQueueing() throws(SystemError) {
    try people.begin()
    try programs.begin()
  }

  /// Before the process exits: waits until what is queued is written, but not for a reader that has stopped.
  func flush(patience: Duration = .milliseconds(500)) {
    if !programs.flush(patience: patience) {
      say("sluice: standard output is incomplete, because nothing reads it")
    }
    _ = people.flush(patience: patience)
  }

  /// Why standard output lacks a line, if it does (errno).
  var outputFailure: Int32? { programs.failure }

  /// Lines of both outputs that were dropped.
  var droppedCount: UInt64 { people.droppedCount.addingSaturated(programs.droppedCount) }

  /// A line for people. The status moves below it.
  func say(_ line: String) {
    let line = Self.peopleText?.shown(line) ?? line
    people.update { $0.append(line: line) }
  }

  /// Replaces the status line; an empty one takes it away.
  func show(status line: String) { show(status: line.isEmpty ? [] : [line]) }

  /// Replaces the status. No line may reach the terminal's last column: it would become two.
  func show(status lines: [String]) {
    let lines = Self.peopleText.map { text in lines.map(text.shown) } ?? lines
    people.update { $0.show(status: lines) }
  }

  /// Leaves the status where it is and goes on below it.
  func keepStatus() { people.update { $0.keepStatus() } }

  /// A line of data for programs.
  ///
  /// - Parameter isRoutine: whether it may be dropped before others, because a later line says the same.
  func put(_ line: String, isRoutine: Bool = false) {
    let line = Self.programsText?.shown(line) ?? line
    programs.update { $0.append(line: line, isRoutine: isRoutine) }
  }

  /// The terminal's width in columns; 80 where it does not say.
  static var width: Int {
    var size = winsize()
    return ioctl(STDERR_FILENO, UInt(TIOCGWINSZ), &size) == 0 && size.ws_col > 0 ? Int(size.ws_col) : 80
  }
}
