// sluice serve

internal import EventLoops
internal import UploadServer

enum Serve {
  static let syntax = CommandLineSyntax(
    name: "serve", summary: "Receives streams into a directory; a JSON line for each begun, continued, ended.",
    operands: [],
    options: [
      Option(
        "listen", short: "l", value: "ADDR:PORT", "where to listen (default 127.0.0.1:8080; repeatable; unix:PATH)",
        mayRepeat: true),
      Option("directory", short: "d", value: "DIR", "where to store streams (default .)"),
      Option("durability", value: "D", "none, interval or always: what an acknowledgement promises (default interval)"),
      Option("max-body", value: "SIZE", "the longest body of a request (default: no limit)"),
      Option("head-timeout", value: "T", "for the head of a request (default 30s)"),
      Option("body-timeout", value: "T", "for a body that is silent (default 0: for ever)"),
      Option("idle-timeout", value: "T", "for a connection between requests (default 75s)"),
      Option("receive-buffer", value: "SIZE", "SO_RCVBUF (default: the kernel's)"),
      Option("max-segment", value: "SIZE", "TCP_MAXSEG (default: the kernel's)"),
    ],
    example: "sluice serve --listen 0.0.0.0:8080 --directory recordings")

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let server = try open(try configuration(values))
    do throws(SystemError) {
      // Before the first thread, so that no thread takes a signal away from this one.
      let signals = try Signals()
      let ended = try EventCounter()
      for address in server.localAddresses { Console.shared.say("listening on \(address)") }
      let thread = try NamedThread("sluice-server") {
        server.run()
        ended.signal()
      }
      signals.wait(for: ended) { count in
        if count == 1 { Console.shared.say("ending: unfinished streams stay as .part files and can be continued") }
        server.shutdown(grace: count == 1 ? .seconds(2) : .zero)
      }
      thread.join()
      return .done
    } catch {
      throw CommandError(.inputOutput, error.description)
    }
  }

  private static func configuration(
    _ values: CommandLineSyntax.Values
  ) throws(CommandError) -> UploadServer.Configuration {
    let given = values.all("listen")
    var addresses: [ListenAddress] = []
    do throws(UploadServerError) {
      for text in given.isEmpty ? ["127.0.0.1:8080"] : given { addresses.append(try ListenAddress(text)) }
    } catch {
      throw .usage(error.description)
    }
    var configuration = UploadServer.Configuration(listen: addresses, directory: values["directory"] ?? ".") {
      Console.shared.put($0.jsonLine)
    }
    if let text = values["max-body"] {
      configuration.maximumBodyLength = UInt64(try Units.byteCount(text, of: "max-body"))
    }
    if let text = values["durability"] {
      guard let durability = Durability(rawValue: text) else {
        throw .usage("--durability is none, interval or always, and not \"\(text)\"")
      }
      configuration.durability = durability
    }
    if let text = values["head-timeout"] { configuration.headTimeout = try Units.duration(text, of: "head-timeout") }
    if let text = values["body-timeout"] {
      configuration.bodyIdleTimeout = try Units.duration(text, of: "body-timeout")
    }
    if let text = values["idle-timeout"] {
      configuration.keepAliveTimeout = try Units.duration(text, of: "idle-timeout")
    }
    if let text = values["receive-buffer"] {
      configuration.receiveBufferSize = try Units.byteCount(text, of: "receive-buffer")
    }
    if let text = values["max-segment"] {
      configuration.maximumSegmentSize = try Units.byteCount(text, of: "max-segment")
    }
    return configuration
  }

  private static func open(_ configuration: UploadServer.Configuration) throws(CommandError) -> UploadServer {
    do throws(UploadServerError) {
      return try UploadServer(configuration: configuration)
    } catch {
      let code: ExitCode =
        switch error {
        case .malformedAddress: .usage
        case .unknownHost, .portTaken, .notOurAddress, .cannotListen: .unavailable
        case .portNotPermitted: .notPermitted
        case .noDirectory, .unwritableDirectory, .directoryInUse, .resources: .inputOutput
        }
      throw CommandError(code, error.description)
    }
  }
}
