// sluice put --background

internal import EventLoops
internal import LiveStreaming
internal import TransferClient
internal import UploadClient

enum PutBackground {
  /// Options that do not apply to an upload in another process.
  private static let foreign = [
    "resume", "resume-file", "abandon", "metrics", "give-up", "finish-timeout", "send-buffer", "max-segment",
  ]

  /// Gives the upload to the agent.
  static func run(
    _ values: CommandLineSyntax.Values, _ configuration: LiveStreamConfiguration, _ progress: ProgressKind
  ) throws(CommandError) -> ExitCode {
    try BackgroundOrder.refuse(foreign, values)
    let request = transferRequest(values, configuration)
    return try BackgroundOrder.submit(request, progress) { id in
      "transfer \(id): the agent uploads \(values.operands[0].shellQuoted). See: sluice transfers list"
    }
  }

  private static func transferRequest(
    _ values: CommandLineSyntax.Values, _ configuration: LiveStreamConfiguration
  ) -> TransferRequest {
    let request = configuration.request
    var transfer = TransferRequest(
      key: LiveStreamConfiguration.randomStreamID(), url: request.url, path: AgentCommand.absolute(values.operands[0]))
    transfer.file = FileStamp.of(transfer.path)
    transfer.method = request.method
    transfer.mayUsePOST = configuration.mayUsePOST
    transfer.adopt(request, values, configuration.retry)
    transfer.stallLimit = BackgroundOrder.milliseconds(request.limits.unacknowledged, "stall-timeout", values)
    transfer.resumable = configuration.resumable.rawValue
    transfer.streamID = values["stream-id"]
    transfer.digest = configuration.digest?.rawValue
    transfer.keepsOrigin = configuration.keepsOrigin
    transfer.rollOverAfter = BackgroundOrder.milliseconds(configuration.rollOver.after, "roll-over-after", values)
    transfer.rollOverSize = values.has("roll-over-bytes") ? configuration.rollOver.size : nil
    return transfer
  }
}
