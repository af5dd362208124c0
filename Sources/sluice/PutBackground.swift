// sluice put --background

internal import EventLoops
internal import JSONLines
internal import LiveStreaming
internal import TransferClient
internal import UploadClient

enum PutBackground {
  /// What has no meaning to an upload that this process does not perform.
  private static let foreign = [
    "resume", "resume-file", "abandon", "metrics", "give-up", "finish-timeout", "send-buffer", "max-segment",
  ]

  /// Hands the upload to the agent.
  static func run(
    _ values: CommandLineSyntax.Values, _ configuration: LiveStreamConfiguration, _ progress: ProgressKind
  ) throws(CommandError) -> ExitCode {
    for option in foreign where values.has(option) {
      throw .usage("--\(option) is not for --background. Leave one of them out.")
    }
    let request = transferRequest(values, configuration)
    do throws(AgentError) {
      guard let location = AgentLocation.current else { throw AgentError.noLocation }
      let id = try submit(request, location)
      if progress == .json {
        var line = JSONLine(event: "accepted")
        line.add("id", id)
        Console.shared.put(line.line)
      } else {
        Console.shared.say(
          "transfer \(id): the agent uploads \(values.operands[0].shellQuoted). See: sluice transfers list")
      }
      return .done
    } catch {
      throw CommandError(error)
    }
  }

  /// An agent that ends before it answers may have accepted the transfer or not. It is asked again: with the same key,
  /// it accepts it once.
  private static func submit(
    _ request: TransferRequest, _ location: AgentLocation
  ) throws(AgentError) -> Int64 {
    while true {
      do throws(AgentError) {
        let connection = try AgentLaunch.connection(location, program: "/proc/self/exe")
        switch try connection.order(.submit(request)) {
        case .accepted(_, let id): return id
        case .refused(_, let refusal, let message): throw AgentError.refused(refusal, message)
        default: throw AgentError.noAnswer
        }
      } catch {
        guard error == .disconnected else { throw error }
      }
    }
  }

  private static func transferRequest(
    _ values: CommandLineSyntax.Values, _ configuration: LiveStreamConfiguration
  ) -> TransferRequest {
    let request = configuration.request
    func file(_ path: String?) -> String? { path.map(AgentCommand.absolute) }
    func milliseconds(_ duration: Duration, _ option: String) -> Int64? {
      values.has(option) ? max(1, duration.nanoseconds / 1_000_000) : nil
    }
    var transfer = TransferRequest(
      key: LiveStreamConfiguration.randomStreamID(), url: request.url, path: AgentCommand.absolute(values.operands[0]))
    transfer.file = FileStamp.of(transfer.path)
    transfer.method = request.method
    transfer.mayUsePOST = configuration.mayUsePOST
    transfer.fields = request.fields.map { "\($0.name): \($0.value)" }
    transfer.tokenFile = file(values["bearer-token-file"])
    if transfer.tokenFile == nil { transfer.token = request.bearerToken }
    (transfer.netrcFile, transfer.proxy, transfer.unixSocket) = (
      file(request.netrcFile), request.proxy, file(request.unixSocket)
    )
    transfer.certificateAuthorities = file(request.certificateAuthorities)
    (transfer.clientCertificate, transfer.clientKey) = (file(request.clientCertificate), file(request.clientKey))
    transfer.addressFamily = values.has("ipv4") ? 4 : values.has("ipv6") ? 6 : nil
    transfer.usesHTTP1 = values.has("http1")
    transfer.connectLimit = milliseconds(request.limits.connect, "connect-timeout")
    transfer.stallLimit = milliseconds(request.limits.unacknowledged, "stall-timeout")
    transfer.responseLimit = milliseconds(request.limits.response, "response-timeout")
    transfer.resumable = configuration.resumable.rawValue
    transfer.streamID = values["stream-id"]
    transfer.digest = configuration.digest?.rawValue
    transfer.keepsOrigin = configuration.keepsOrigin
    transfer.rollOverAfter = milliseconds(configuration.rollOver.after, "roll-over-after")
    transfer.rollOverSize = values.has("roll-over-bytes") ? configuration.rollOver.size : nil
    transfer.longestPause = milliseconds(configuration.retry.maximumCeiling, "retry-ceiling")
    transfer.giveUpOnRefusalAfter = configuration.retry.giveUpOnRefusalAfter.map { $0.nanoseconds / 1_000_000 }
    return transfer
  }
}
