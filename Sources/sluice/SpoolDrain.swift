// sluice spool drain: sends the data that earlier runs left, and captures nothing.

internal import EventLoops
internal import LiveStreaming
internal import Spool
internal import SpooledStreams
internal import UploadClient

/// Sends the backlog of one stream after another.
struct SpoolDrain {
  /// `DIR/STREAM` of each.
  let folders: [String]
  let values: CommandLineSyntax.Values

  private final class Ending: Sendable {
    let done: EventCounter
    let outcome = BacklogOutcome()
    init() throws(SystemError) { done = try EventCounter() }
  }

  /// Checks the options before anything is opened.
  static func check(_ values: CommandLineSyntax.Values) throws(CommandError) {
    _ = try ProgressKind(values)
    let request = try configuration(values, url: "http://localhost/").request
    try SpoolOptions.checkRate(request, values)
    guard request.method != "PUT" else {
      throw .usage(
        "--method \("PUT".shown) does not apply to sluice spool drain: each stretch would replace the one before. Choose another method."
      )
    }
  }

  private static func configuration(
    _ values: CommandLineSyntax.Values, url: String
  ) throws(CommandError) -> LiveStreamConfiguration {
    let request = try StreamOptions.request(values, url: url)
    return try StreamOptions.configuration(
      values, request: request, bytesPerSecond: 1_000_000, buffer: .bytes(1 << 20), overflow: .dropOldest)
  }

  func run() throws(CommandError) -> ExitCode {
    var code = ExitCode.done
    var inUse: [String] = []
    do {
      let signals = try Signals()
      try Console.shared.beginQueueing()
      let session = try UploadSession()
      defer { session.close() }
      for folder in folders {
        let ending = try Ending()
        let begun: BacklogStreamer?
        do {
          begun = try begin(folder, session, ending)
        } catch let error as CommandError {
          // The other streams do not wait for this one.
          Console.shared.say("sluice: \(error.message)")
          if error.code == .busy { inUse.append(folder) } else if code == .done { code = error.code }
          continue
        }
        guard let backlog = begun else { continue }
        var isStopped = false
        signals.wait(for: ending.done) { _ in
          isStopped = true
          backlog.cancel()
          return .ends
        }
        if code == .done { code = ending.outcome.exitCode }
        if isStopped { return code == .done ? .interrupted : code }
      }
      if !inUse.isEmpty {
        let names = inUse.map { $0.shown }.joined(separator: ", ")
        Console.shared.say("not sent, because another process uses it: \(names). That process also sends it.")
        if code == .done { code = .busy }
      }
    } catch let error as CommandError {
      throw error
    } catch {
      throw CommandError(machine: error)
    }
    return code
  }

  /// Nil if there is nothing to send.
  private func begin(_ folder: String, _ session: UploadSession, _ ending: Ending) throws -> BacklogStreamer? {
    let progress = try ProgressKind(values)
    let end = folder.lastIndex(of: "/") ?? folder.startIndex
    let options = SpoolOptions(directory: String(folder[..<end]), stream: String(folder[end...].dropFirst()))
    let spool = try options.open(ending.outcome, progress)
    guard !spool.backlog.isEmpty else { return nil }
    let url = spool.descriptions.lazy.compactMap { StretchDescription($0)?.url }.first { _ in true }
    let configuration = try Self.configuration(values, url: url ?? "http://localhost/")
    let backlog = BacklogStreamer(spool, configuration: configuration, session: session)
    backlog.start { event in
      if case .ended = event { ending.outcome.close() }
      if progress == .json {
        if let line = SpoolReport.jsonLine(event, time: WallClock.now.iso8601) {
          Console.shared.put(line, isRoutine: false)
        }
      } else if let line = SpoolReport.line(event) {
        Console.shared.say(line)
      }
      switch event {
      case .stream(_, .ended(let summary)): ending.outcome.note(ExitCode(spooled: summary, isCancelled: true))
      case .unreadable: ending.outcome.note(.badData)
      case .ended:
        // The files are closed with the last reference to the spool.
        withExtendedLifetime(spool) {}
        ending.done.signal()
      default: break
      }
    }
    return backlog
  }
}
