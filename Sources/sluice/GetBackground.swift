// sluice get --background

internal import Downloads
internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import TransferClient
internal import UploadClient

enum GetBackground {
  /// Options that do not apply to a download in another process.
  private static let foreign = ["resume", "resume-file", "abandon", "give-up"]

  /// Gives the download to the agent.
  static func run(
    _ values: CommandLineSyntax.Values, _ configuration: FileDownload.Configuration, _ progress: ProgressKind
  ) throws(CommandError) -> ExitCode {
    try BackgroundOrder.refuse(foreign, values)
    guard values["output"] != "-" else {
      throw .usage("--background cannot write to standard output (--output -). Name a file.")
    }
    let target = try DownloadTarget(output: values["output"], url: configuration.request.url)
    try target.check(replaces: values.has("force"))
    var transfer = TransferRequest(
      key: LiveStreamConfiguration.randomStreamID(), url: configuration.request.url,
      path: AgentCommand.absolute(target.path))
    (transfer.kind, transfer.method) = (.download, "GET")
    transfer.adopt(configuration.request, values, configuration.retry)
    transfer.replaces = values.has("force")
    // The file gets the mode that this process would give it. The agent's umask may differ.
    let mask = umask(0)
    umask(mask)
    transfer.permissions = UInt32(0o666 & ~mask)
    return try BackgroundOrder.submit(transfer, progress) { id in
      "transfer \(id): the agent downloads the file to \(target.path.shellQuoted). See: sluice transfers list"
    }
  }
}
