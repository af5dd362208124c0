// What the command says to the script that called it.

internal import Downloads
internal import LiveStreaming

/// The process's exit codes; where there is one, the number of sysexits(3).
enum ExitCode: Int32, CaseIterable {
  case done = 0
  /// A load test did what `--fail-if` says it must not.
  case thresholdFailed = 3
  /// The stream ended, and some of its data was lost; or `verify` has found a problem. What an error ended has the
  /// error's code instead.
  case dataLost = 4
  /// The command line cannot be used.
  case usage = 64
  /// A file is not what it has to be, or files do not belong together.
  case badData = 65
  /// There is no such device.
  case noDevice = 66
  /// There is no such file, or it may not be read: by sysexits(3) the same number as a missing device.
  static let noInput = noDevice
  /// The server could not be reached for as long as `--give-up` allows, did not confirm the end of a stream of which
  /// nothing is missing, or an address cannot be listened on.
  case unavailable = 69
  /// Reading, writing or capturing failed on this machine.
  case inputOutput = 74
  /// Another process uses the spool.
  case busy = 75
  /// The server does not do what a stream needs.
  case protocolBroken = 76
  /// The server does not permit it, or this machine does not.
  case notPermitted = 77
  /// Stopped by a second signal before everything was sent, or `put`, `get` and `verify` by the first.
  case interrupted = 130

  /// What `sluice help exit-codes` says of it.
  private var meaning: String {
    switch self {
    case .done: "done: everything was delivered"
    case .thresholdFailed: "a threshold of --fail-if was exceeded"
    case .dataLost: "verify found a problem, or data was lost (if an error ended the stream, the code of that error)"
    case .usage: "the command line is invalid"
    case .badData: "a file has the wrong content, or files do not belong together"
    case .noDevice: "there is no such device or file, or it cannot be read"
    case .unavailable: "the server was not reached or stopped answering, or the address to listen on is not available"
    case .inputOutput: "reading, writing or capturing failed on this machine"
    case .busy: "another process uses the spool. `spool drain` has sent the other streams"
    case .protocolBroken: "the server broke the protocol, or cannot receive the stream"
    case .notPermitted: "the server or this machine does not permit it"
    case .interrupted:
      "a second signal, at least 0.5 s after the first, stopped it (put, get, verify: the first)"
    }
  }

  /// Each code and its meaning.
  static var rows: [(label: String, text: String)] { allCases.map { ("\($0.rawValue)", $0.meaning) } }

  /// `sluice help exit-codes`.
  static var page: String {
    (["Exit codes:", ""] + HelpLayout.table(rows)).joined(separator: "\n")
  }

  /// What a stream's end means: its error, or else whether it lost data.
  init(_ summary: StreamSummary) {
    guard let error = summary.error else {
      self = summary.hasLoss ? .dataLost : .done
      return
    }
    switch error.kind {
    case .invalidRequest: self = .usage
    case .notPermitted: self = .notPermitted
    case .notTrusted, .refused, .protocolBroken, .insecureLocation, .http2NotSupported: self = .protocolBroken
    case .unreachable: self = .unavailable
    case .unfinished: self = summary.hasLoss || summary.progress.unsent > 0 ? .dataLost : .unavailable
    case .overflow, .source: self = .inputOutput
    case .cancelled: self = .interrupted
    }
  }
}

extension ExitCode {
  init(_ error: DownloadError) {
    self =
      switch error.kind {
      case .invalidRequest: .usage
      case .notPermitted: .notPermitted
      case .notTrusted, .refused, .protocolBroken, .insecureLocation, .corrupt: .protocolBroken
      case .unreachable: .unavailable
      case .file, .exists: .inputOutput
      case .cancelled: .interrupted
      }
  }
}

/// An error that ends the command: a line for its user and a code for its caller.
struct CommandError: Error {
  let code: ExitCode
  let message: String

  init(_ code: ExitCode, _ message: String) {
    self.code = code
    self.message = message
  }

  static func usage(_ message: String) -> CommandError { CommandError(.usage, message) }
}
