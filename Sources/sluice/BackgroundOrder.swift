// The common part of put --background and get --background.

internal import EventLoops
internal import JSONLines
internal import LiveStreaming
internal import TransferClient
internal import UploadClient

enum BackgroundOrder {
  /// - Throws: ``CommandError`` for an option that does not apply to a transfer in another process.
  static func refuse(_ options: [String], _ values: CommandLineSyntax.Values) throws(CommandError) {
    for option in options where values.has(option) {
      throw .usage("--\(option) does not apply with --background. Leave one of them out.")
    }
  }

  /// Gives a transfer to the agent, and prints its number.
  static func submit(
    _ request: TransferRequest, _ progress: ProgressKind, _ words: (Int64) -> String
  ) throws(CommandError) -> ExitCode {
    do throws(AgentError) {
      guard let location = AgentLocation.current else { throw AgentError.noLocation }
      let id = try submit(request, location)
      if progress == .json {
        var line = JSONLine(event: "accepted")
        line.add("id", id)
        Console.shared.put(line.line)
      } else {
        Console.shared.say(words(id))
      }
      return .done
    } catch {
      throw CommandError(error)
    }
  }

  /// An agent that ends before it answers may or may not have accepted the transfer. The next agent accepts the same
  /// key only once.
  private static func submit(
    _ request: TransferRequest, _ location: AgentLocation
  ) throws(AgentError) -> Int64 {
    var connection = try AgentLaunch.connection(location, program: AgentCommand.program)
    let answer = try AgentLaunch.ask(&connection, location, program: AgentCommand.program) {
      (connection) throws(AgentError) in
      try connection.order(.submit(request))
    }
    switch answer {
    case .accepted(_, let id): return id
    case .refused(_, let refusal, let message): throw AgentError.refused(refusal, message)
    default: throw AgentError.noAnswer
    }
  }

  /// Nil if the agent's default applies.
  static func milliseconds(_ duration: Duration, _ option: String, _ values: CommandLineSyntax.Values) -> Int64? {
    values.has(option) ? max(1, duration.nanoseconds / 1_000_000) : nil
  }
}

extension TransferRequest {
  /// Adopts the connection options and the retry options. The agent reads files by absolute paths.
  mutating func adopt(_ request: UploadRequest, _ values: CommandLineSyntax.Values, _ retry: RetryPolicy) {
    func file(_ path: String?) -> String? { path.map(AgentCommand.absolute) }
    fields = request.fields.lines
    tokenFile = file(values["bearer-token-file"])
    if tokenFile == nil { token = request.bearerToken }
    (netrcFile, proxy, unixSocket) = (file(request.netrcFile), request.proxy, file(request.unixSocket))
    certificateAuthorities = file(request.certificateAuthorities)
    (clientCertificate, clientKey) = (file(request.clientCertificate), file(request.clientKey))
    addressFamily = values.has("ipv4") ? 4 : values.has("ipv6") ? 6 : nil
    usesHTTP1 = values.has("http1")
    connectLimit = BackgroundOrder.milliseconds(request.limits.connect, "connect-timeout", values)
    responseLimit = BackgroundOrder.milliseconds(request.limits.response, "response-timeout", values)
    longestPause = BackgroundOrder.milliseconds(retry.maximumCeiling, "retry-ceiling", values)
    giveUpOnRefusalAfter = retry.giveUpOnRefusalAfter.map { $0.nanoseconds / 1_000_000 }
  }
}
