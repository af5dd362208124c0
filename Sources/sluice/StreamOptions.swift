// The options that `mic`, `heartbeat` and `pipe` share, and what they make of a stream's configuration.

internal import Digests
internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import StreamBuffers
internal import UploadClient

enum StreamOptions {
  static let buffer = Option("buffer", value: "SIZE|T", "what an outage may last, as 16MiB or 5min")
  static let overflow = Option("overflow", value: "P", "when it is full: drop-oldest, stop or wait")
  static let header = Option("header", short: "H", value: "'N: V'", "add a header field (repeatable)", mayRepeat: true)
  static let token = Option("bearer-token-file", value: "FILE", "send the token in FILE (or $SLUICE_BEARER_TOKEN)")
  static let giveUp = Option("give-up", value: "T", "end after T without progress, and 3 attempts (default: never)")
  static let progress = Option("progress", value: "KIND", "auto, bar, json or none (default auto)")

  static let metrics = Option("metrics", value: "ADDR:PORT", "figures for Prometheus at /metrics (default: none)")

  /// Shown in each subcommand's help.
  static let shown = [header, token, giveUp, progress]

  /// Understood by all, and shown by `sluice help resuming`.
  static let resuming = [
    Option("resumable", value: "USE", "resumable uploads: auto, always or never (default auto)"),
    Option("roll-over-after", value: "T", "one request of a resumable upload lasts so long (default 10s)"),
    Option("roll-over-bytes", value: "SIZE", "and carries at most so much (default 256MiB)"),
    Option("location", value: "HOW", "the server's Location: follow it, or keep the host asked (default follow)"),
    Option("digest", value: "D", "compare with the server's: sha-256, sha-512 or none (mic: sha-256)"),
  ]

  /// Understood by all, and shown by `sluice help connection`.
  static let connection = [
    metrics,
    Option("method", value: "M", "the request's method (default POST)"),
    Option("stream-id", value: "ID", "the stream's name at the server (default: 128 random bits)"),
    Option("netrc", "look credentials up in ~/.netrc"),
    Option("netrc-file", value: "FILE", "look credentials up in FILE"),
    Option("proxy", value: "URL", "go through this proxy (default: $http_proxy, $https_proxy)"),
    Option("unix-socket", value: "PATH", "connect through this unix socket"),
    Option("ca-file", value: "FILE", "trust the authorities in this PEM file instead of the system's"),
    Option("cert", value: "FILE", "authenticate with the client certificate in this PEM file"),
    Option("key", value: "FILE", "its private key, where that is in a file of its own"),
    Option("ipv4", short: "4", "use IPv4 only"),
    Option("ipv6", short: "6", "use IPv6 only"),
    Option("http1", "do not negotiate HTTP/2"),
    Option("connect-timeout", value: "T", "for TCP, proxy and TLS (default 10s)"),
    Option("stall-timeout", value: "T", "the peer counts as dead when it accepts nothing for T (default 30s)"),
    Option("response-timeout", value: "T", "from the end of the stream to the response (default 30s)"),
    Option("retry-ceiling", value: "T", "the longest pause between two attempts (default 15s)"),
    Option("give-up-on-refusal", value: "T", "end when refused for T (default: 10min once data was acknowledged)"),
    Option("send-buffer", value: "SIZE", "SO_SNDBUF: how much may be under way (default: the kernel's)"),
    Option("max-segment", value: "SIZE", "TCP_MAXSEG (default: the kernel's)"),
  ]

  static func request(_ values: CommandLineSyntax.Values, url: String? = nil) throws(CommandError) -> UploadRequest {
    var request = UploadRequest(url: url ?? values.operands[0])
    request.method = values["method"] ?? "POST"
    for line in values.all("header") { request.fields.append(try field(line)) }
    request.bearerToken = try bearerToken(values)
    if values.has("netrc") { request.netrcFile = (getenv("HOME").map { String(cString: $0) } ?? "") + "/.netrc" }
    if let file = values["netrc-file"] { request.netrcFile = try readable(file, "netrc-file") }
    request.proxy = values["proxy"]
    request.unixSocket = values["unix-socket"]
    request.certificateAuthorities = try values["ca-file"].map { (file) throws(CommandError) in
      try readable(file, "ca-file")
    }
    request.clientCertificate = try values["cert"].map { (file) throws(CommandError) in try readable(file, "cert") }
    request.clientKey = try values["key"].map { (file) throws(CommandError) in try readable(file, "key") }
    if values.has("ipv4") { request.addressFamily = .ipv4 }
    if values.has("ipv6") { request.addressFamily = .ipv6 }
    if values.has("http1") { request.httpVersion = .http1 }
    if let text = values["connect-timeout"] { request.limits.connect = try Units.duration(text, of: "connect-timeout") }
    if let text = values["stall-timeout"] {
      request.limits.unacknowledged = try Units.duration(text, of: "stall-timeout")
    }
    if let text = values["response-timeout"] {
      request.limits.response = try Units.duration(text, of: "response-timeout")
    }
    if let text = values["send-buffer"] { request.socket.sendBuffer = try Units.byteCount(text, of: "send-buffer") }
    if let text = values["max-segment"] { request.socket.maximumSegment = try Units.byteCount(text, of: "max-segment") }
    do throws(UploadError) { try request.validate() } catch { throw .usage(error.description) }
    return request
  }

  /// - Parameters:
  ///   - bytesPerSecond: turns a buffer given as a time into bytes.
  ///   - overflow: unless `--overflow` says otherwise.
  static func configuration(
    _ values: CommandLineSyntax.Values, request: UploadRequest, bytesPerSecond: Int, buffer: CircularBuffer.Capacity,
    overflow: OverflowPolicy
  ) throws(CommandError) -> LiveStreamConfiguration {
    var configuration = LiveStreamConfiguration(request: request)
    configuration.buffer = buffer
    configuration.overflow = overflow
    if let text = values["buffer"] {
      if let count = Units.byteCount(text) {
        configuration.buffer = .bytes(count)
      } else {
        configuration.buffer = .time(try Units.duration(text, of: "buffer"), bytesPerSecond: bytesPerSecond)
      }
    }
    if let text = values["overflow"] {
      guard let policy = OverflowPolicy(rawValue: text) else {
        throw .usage("--overflow \"\(text)\" is no policy: choose drop-oldest, stop or wait")
      }
      configuration.overflow = policy
    }
    if let id = values["stream-id"] {
      guard (1...64).contains(id.utf8.count), id.first != ".",
        id.utf8.allSatisfy({
          ($0 >= 0x30 && $0 <= 0x39) || ($0 | 0x20 >= 0x61 && $0 | 0x20 <= 0x7a) || "._-".utf8.contains($0)
        })
      else { throw .usage("--stream-id \"\(id)\" is not 1 to 64 of A-Z a-z 0-9 . _ - without a dot in front") }
      configuration.streamID = id
    }
    if let text = values["give-up"] { configuration.retry.giveUpAfter = try Units.duration(text, of: "give-up") }
    if let text = values["retry-ceiling"] {
      configuration.retry.maximumCeiling = try Units.duration(text, of: "retry-ceiling")
    }
    if let text = values["give-up-on-refusal"] {
      configuration.retry.giveUpOnRefusalAfter = try Units.duration(text, of: "give-up-on-refusal")
    }
    try resumable(values, &configuration)
    return configuration
  }

  private static func resumable(
    _ values: CommandLineSyntax.Values, _ configuration: inout LiveStreamConfiguration
  ) throws(CommandError) {
    if let text = values["resumable"] {
      guard let use = LiveStreamConfiguration.ResumableUse(rawValue: text) else {
        throw .usage("--resumable \"\(text)\" is none: choose auto, always or never")
      }
      configuration.resumable = use
    }
    if let text = values["roll-over-after"] {
      configuration.rollOver.after = try Units.duration(text, of: "roll-over-after")
    }
    if let text = values["roll-over-bytes"] {
      configuration.rollOver.size = UInt64(try Units.byteCount(text, of: "roll-over-bytes"))
    }
    switch values["location"] ?? "follow" {
    case "follow": break
    case "keep": configuration.keepsOrigin = true
    case let text: throw .usage("--location \"\(text)\" is none: choose follow or keep")
    }
    configuration.digest = try digest(values)
    if let path = values["bearer-token-file"] {
      configuration.bearerToken = { try? token(inFile: path) }
    }
  }

  static func digest(_ values: CommandLineSyntax.Values) throws(CommandError) -> DigestAlgorithm? {
    guard let text = values["digest"], text != "none" else { return nil }
    guard let algorithm = DigestAlgorithm(rawValue: text) else {
      throw .usage("--digest \"\(text)\" is none: choose sha-256, sha-512 or none")
    }
    do throws(DigestError) { _ = try RunningDigest(algorithm) } catch { throw .usage(error.description) }
    return algorithm
  }

  private static func field(_ line: String) throws(CommandError) -> HTTPResponse.Field {
    guard let colon = line.firstIndex(of: ":") else {
      throw .usage("--header \"\(line)\" has no colon: write 'Name: value'")
    }
    let name = String(line[..<colon])
    guard !UploadRequest.isReserved(fieldName: name) else {
      throw .usage("--header \"\(line)\" cannot be sent: the upload itself decides about \(name). Leave it out.")
    }
    return .init(name: name, value: String(line[line.index(after: colon)...].drop { $0 == " " }))
  }

  /// From a file or the environment, never from the command line, where every user of the machine could read it.
  private static func bearerToken(_ values: CommandLineSyntax.Values) throws(CommandError) -> String? {
    guard let path = values["bearer-token-file"] else {
      return getenv("SLUICE_BEARER_TOKEN").map { String(cString: $0) }
    }
    return try token(inFile: path)
  }

  private static func token(inFile path: String) throws(CommandError) -> String {
    guard let file = fopen(path, "r") else {
      throw .usage("--bearer-token-file \"\(path)\" cannot be read: \(String(cString: strerror(errno)))")
    }
    defer { fclose(file) }
    var bytes = [UInt8](repeating: 0, count: 16 * 1024)
    let count = fread(&bytes, 1, bytes.count, file)
    var token = bytes.prefix(count)
    while let last = token.last, last == 0x0a || last == 0x0d || last == 0x20 { token.removeLast() }
    return String(decoding: token, as: UTF8.self)
  }

  private static func readable(_ path: String, _ option: String) throws(CommandError) -> String {
    guard access(path, R_OK) == 0 else {
      throw .usage("--\(option) \"\(path)\" cannot be read: \(String(cString: strerror(errno)))")
    }
    return path
  }
}
