// The exit codes that the command reports to the calling script.

internal import Downloads
internal import LiveStreaming

/// The exit codes of the process. They follow sysexits(3) where it defines a number.
enum ExitCode: Int32, CaseIterable {
  case done = 0
  /// A load test violated a condition of `--fail-if`.
  case thresholdFailed = 3
  /// The stream ended and lost data, or `verify` found a problem. If an error ended the stream, that error's code is
  /// used.
  case dataLost = 4
  /// The command line is invalid.
  case usage = 64
  /// A file has the wrong content, or files do not belong together.
  case badData = 65
  /// The device does not exist.
  case noDevice = 66
  /// The file does not exist or cannot be read. sysexits(3) has the same number for a missing device.
  static let noInput = noDevice
  /// The server could not be reached within `--give-up`, or it did not confirm the end of a stream without losses. Or
  /// the command cannot listen on an address. If bytes of such a stream are unacknowledged, the code is that of lost
  /// data. Over a plain upload, the acknowledgement of the server's TCP counts.
  case unavailable = 69
  /// Reading, writing, capturing or opening a connection failed on this machine, or the output file exists.
  case inputOutput = 74
  /// Another process uses the spool.
  case busy = 75
  /// The server does not support the requests of the stream, or the URL does not exist.
  case protocolBroken = 76
  /// The server or this machine does not permit the operation.
  case notPermitted = 77
  /// Stopped by a second signal before everything was sent. The first signal suffices for `put`, `get` and `verify`.
  case interrupted = 130

  /// The text for `sluice help exit-codes`.
  private var meaning: String {
    switch self {
    case .done: "success: everything was delivered"
    case .thresholdFailed: "a condition of --fail-if was true"
    case .dataLost: "data was lost, or verify found a problem (an error that ends a stream has its own code)"
    case .usage: "the command line is invalid"
    case .badData: "a file has the wrong content, or files do not belong together"
    case .noDevice: "a device or file does not exist or cannot be read"
    case .unavailable:
      "the server could not be reached or stopped answering, or the address to listen on is not available"
    case .inputOutput:
      "reading, writing, capturing or opening a connection failed on this machine, or the output file exists"
    case .busy: "another process uses the spool (`spool drain` has sent the other streams)"
    case .protocolBroken: "the server broke the protocol or does not support the stream, or the URL does not exist"
    case .notPermitted: "the server or this machine does not permit it"
    case .interrupted:
      "stopped by a second signal, at least 0.5 s after the first (put, get, verify: by the first)"
    }
  }

  /// Each code and its meaning.
  static var rows: [(label: String, text: String)] { allCases.map { ("\($0.rawValue)", $0.meaning) } }

  /// `sluice help exit-codes`.
  static var page: String {
    (["Exit codes:", ""] + HelpLayout.table(rows)).joined(separator: "\n")
  }

  /// The exit code for the end of a stream: the code of its error, or whether it lost data.
  init(_ summary: StreamSummary) {
    guard let error = summary.error else {
      self = summary.hasLoss ? .dataLost : .done
      return
    }
    switch error.kind {
    case .invalidRequest: self = .usage
    case .notPermitted: self = .notPermitted
    case .notTrusted, .refused, .protocolBroken, .insecureLocation, .http2NotSupported: self = .protocolBroken
    case .unreachable: self = error.machineError == nil ? .unavailable : .inputOutput
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
      case .unreachable: error.systemError == nil ? .unavailable : .inputOutput
      case .file, .exists: .inputOutput
      case .cancelled: .interrupted
      }
  }
}

/// An error that ends the command: a message for the user and an exit code for the caller.
struct CommandError: Error {
  let code: ExitCode
  let message: String

  init(_ code: ExitCode, _ message: String) {
    self.code = code
    self.message = message
  }

  static func usage(_ message: String) -> CommandError { CommandError(.usage, message) }
}
