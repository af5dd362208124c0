// The options that `mic`, `heartbeat` and `pipe` share, and the stream configuration that follows from them.

internal import Digests
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import LiveStreaming
internal import StreamBuffers
internal import UploadClient

enum StreamOptions {
  static let buffer = Option(
    "buffer", value: "SIZE|T", "size of the buffer for unacknowledged data, such as 16MiB or 5min")
  static let overflow = Option("overflow", value: "P", "action when the buffer is full: drop-oldest, stop or wait")
  static let header = Option(
    "header", short: "H", value: "'N: V'", "add a header field (repeatable; default: none)", mayRepeat: true)
  static let token = Option(
    "bearer-token-file", value: "FILE", "send the token in FILE (default: $SLUICE_BEARER_TOKEN)")
  static let giveUp = Option(
    "give-up", value: "T", "end after T without progress and after at least 3 attempts (default: never)")
  static let finishTimeout = Option(
    "finish-timeout", value: "T", "after the first signal, end after T without an acknowledgement (default: 20s)")
  static let progress = Option(
    "progress", value: "KIND", "format of the progress: auto, bar, json or none (default: auto)")
  static let metrics = Option(
    "metrics", value: "ADDR:PORT", "serve metrics for Prometheus at /metrics (default: off)")
  static let resumable = Option(
    "resumable", value: "USE",
    "use resumable uploads: auto, always (if the server supports them, so that a portal cannot turn them off) "
      + "or never (default: auto)")

  /// Shown in the help of each subcommand.
  static let shown = [header, token, giveUp, progress]

  static func buffer(default text: String) -> Option { described(buffer, default: text) }
  static func overflow(default text: String) -> Option { described(overflow, default: text) }

  private static func described(_ option: Option, default text: String) -> Option {
    Option(option.name, value: option.value, "\(option.help) (default: \(text))")
  }

  static let resuming = HelpTopic(
    name: "resuming", title: "Options of resumable uploads and digests",
    options: [
      resumable,
      Option("roll-over-after", value: "T", "begin a new request after T (default: 10s)"),
      Option("roll-over-bytes", value: "SIZE", "begin a new request after SIZE (default: 256MiB; put: no limit)"),
      Option(
        "location", value: "HOW",
        "handling of the server's Location: follow it, or keep the scheme, host and port of the URL (default: follow)"),
      Option(
        "digest", value: "D",
        "compare digests with the server: sha-256, sha-512 or none (default: none; mic: sha-256)"),
    ])

  static let connection = HelpTopic(
    name: "connection", title: "Options of the connection",
    options: [
      metrics,
      Option("method", value: "M", "method of the request (default: POST; put: PUT)"),
      Option("stream-id", value: "ID", "name of the stream on the server (default: 128 random bits)"),
      Option("netrc", "look up credentials in ~/.netrc"),
      Option("netrc-file", value: "FILE", "look up credentials in FILE (default: none)"),
      Option("proxy", value: "URL", "connect through this proxy (default: $http_proxy, $https_proxy)"),
      Option("unix-socket", value: "PATH", "connect through this Unix socket (default: none)"),
      Option("ca-file", value: "FILE", "trust the authorities in this PEM file (default: the system's)"),
      Option("cert", value: "FILE", "authenticate with the client certificate in this PEM file (default: none)"),
      Option("key", value: "FILE", "private key of the certificate (default: in the certificate's file)"),
      Option("ipv4", short: "4", "use IPv4 only"),
      Option("ipv6", short: "6", "use IPv6 only"),
      Option("http1", "use HTTP/1.1 only"),
      Option("connect-timeout", value: "T", "longest time to connect, including proxy and TLS (default: 10s)"),
      Option("stall-timeout", value: "T", "reconnect when the peer accepts nothing for T (default: 30s)"),
      Option(
        "response-timeout", value: "T",
        "longest time from the end of the content to the response (default: 30s; put to a plain server: 10min)"),
      finishTimeout,
      Option("retry-ceiling", value: "T", "longest pause between two attempts (default: 15s)"),
      Option(
        "give-up-on-refusal", value: "T",
        "end after the server has refused requests for T (default: at once; 10min if it has acknowledged data)"),
      Option("send-buffer", value: "SIZE", "size of the socket's send buffer, SO_SNDBUF (default: the kernel's)"),
      Option("max-segment", value: "SIZE", "largest TCP segment, TCP_MAXSEG (default: the kernel's)"),
    ])

  static func request(_ values: CommandLineSyntax.Values, url: String? = nil) throws(CommandError) -> UploadRequest {
    let written = url ?? values.operands[0]
    guard let encoded = UploadRequest.ascii(written) else {
      throw .usage(
        "the URL \(UploadRequest.withoutSecrets(written).shellQuoted) has a host name that is invalid in the DNS. Check its spelling."
      )
    }
    var request = UploadRequest(url: encoded)
    request.method = try method(values["method"] ?? "POST")
    for line in values.all("header") { request.fields.append(contentsOf: try field(line)) }
    request.bearerToken = try bearerToken(values)
    if values.has("netrc") {
      let file = (getenv("HOME").map { String(cString: $0) } ?? "") + "/.netrc"
      if access(file, F_OK) == 0 { try InputFile.checkIsReadAgain(file, option: "netrc") }
      request.netrcFile = file
    }
    if let file = values["netrc-file"] { request.netrcFile = try readable(file, "netrc-file") }
    request.proxy = values["proxy"]
    try checkProxy(request)
    request.unixSocket = try values["unix-socket"].map { (path) throws(CommandError) in try socket(path) }
    request.certificateAuthorities = try values["ca-file"].map { (file) throws(CommandError) in
      try readable(file, "ca-file")
    }
    request.clientCertificate = try values["cert"].map { (file) throws(CommandError) in try readable(file, "cert") }
    request.clientKey = try values["key"].map { (file) throws(CommandError) in try readable(file, "key") }
    if request.clientKey != nil, request.clientCertificate == nil {
      throw .usage("--key requires --cert. Add the certificate of the key.")
    }
    if let file = request.clientKey ?? request.clientCertificate {
      try PrivateKeyFile.check(file, option: request.clientKey == nil ? "cert" : "key")
    }
    if values.has("ipv4") { request.addressFamily = .ipv4 }
    if values.has("ipv6") { request.addressFamily = .ipv6 }
    if values.has("http1") { request.httpVersion = .http1 }
    if let text = values["connect-timeout"] { request.limits.connect = try time(text, of: "connect-timeout") }
    if let text = values["stall-timeout"] {
      request.limits.unacknowledged = try time(text, of: "stall-timeout")
    }
    if let text = values["response-timeout"] {
      request.limits.response = try time(text, of: "response-timeout")
    }
    if let text = values["send-buffer"] { request.socket.sendBuffer = try Units.byteCount(text, of: "send-buffer") }
    if let text = values["max-segment"] {
      request.socket.maximumSegment = try Units.byteCount(text, of: "max-segment", in: segmentSizes)
    }
    do throws(UploadError) { try request.validate() } catch { throw .usage(error.description) }
    try checkContradictions(request, values)
    return request
  }

  /// Rejects requests that could never be sent, or only in part.
  private static func checkContradictions(
    _ request: UploadRequest, _ values: CommandLineSyntax.Values
  ) throws(CommandError) {
    let shown = UploadRequest.withoutSecrets(request.url).shellQuoted
    guard request.hasUsableURL else {
      throw .usage("the URL \(shown) names no host, or an invalid port. Write http://HOST:PORT/PATH.")
    }
    switch (request.addressFamily, request.literalFamily) {
    case (.ipv6, .ipv4):
      throw .usage("--ipv6 excludes the IPv4 address in \(shown). Leave --ipv6 out, or change the URL.")
    case (.ipv4, .ipv6):
      throw .usage("--ipv4 excludes the IPv6 address in \(shown). Leave --ipv4 out, or change the URL.")
    default: break
    }
    for (option, name) in [("bearer-token-file", "Authorization"), ("content-type", "Content-Type")]
    where values.has(option) && request.fields.contains(name) {
      throw .usage("--header \(name) and --\(option) contradict each other. Choose one.")
    }
  }

  /// - Parameters:
  ///   - bytesPerSecond: turns a buffer size that is given as a time into bytes.
  ///   - overflow: the default of `--overflow`.
  static func configuration(
    _ values: CommandLineSyntax.Values, request: UploadRequest, bytesPerSecond: Int, buffer: CircularBuffer.Capacity,
    overflow: OverflowPolicy
  ) throws(CommandError) -> LiveStreamConfiguration {
    var configuration = LiveStreamConfiguration(request: request)
    configuration.buffer = buffer
    configuration.overflow = overflow
    configuration.description = SourceDescription()
    if let text = values["buffer"] {
      configuration.buffer = try capacity(text, bytesPerSecond: bytesPerSecond)
    }
    if let text = values["overflow"] {
      guard let policy = OverflowPolicy(rawValue: text) else {
        throw .usage("--overflow \(text.shown): unknown. Choose drop-oldest, stop or wait.")
      }
      configuration.overflow = policy
    }
    if let id = values["stream-id"] {
      guard (1...64).contains(id.utf8.count), id.first != ".",
        id.utf8.allSatisfy({
          ($0 >= 0x30 && $0 <= 0x39) || ($0 | 0x20 >= 0x61 && $0 | 0x20 <= 0x7a) || "._-".utf8.contains($0)
        })
      else {
        throw .usage(
          "--stream-id \(id.shown): invalid name. Write 1 to 64 characters of A-Z a-z 0-9 . _ -, with no leading dot.")
      }
      configuration.streamID = id
    }
    if let text = values["give-up"] { configuration.retry.giveUpAfter = try Units.duration(text, of: "give-up") }
    if let text = values["retry-ceiling"] {
      configuration.retry.maximumCeiling = try Units.duration(text, of: "retry-ceiling", atLeast: .milliseconds(1))
    }
    if let text = values["give-up-on-refusal"] {
      configuration.retry.giveUpOnRefusalAfter = try Units.duration(text, of: "give-up-on-refusal")
    }
    try resumable(values, &configuration)
    try SpoolOptions.adapt(&configuration, values)
    return configuration
  }

  private static func resumable(
    _ values: CommandLineSyntax.Values, _ configuration: inout LiveStreamConfiguration
  ) throws(CommandError) {
    if let text = values["resumable"] {
      guard let use = LiveStreamConfiguration.ResumableUse(rawValue: text) else {
        throw .usage("--resumable \(text.shown): unknown. Choose auto, always or never.")
      }
      configuration.resumable = use
    }
    if let text = values["roll-over-after"] {
      configuration.rollOver.after = try Units.duration(text, of: "roll-over-after", atLeast: .milliseconds(1))
    }
    if let text = values["roll-over-bytes"] {
      configuration.rollOver.size = UInt64(try Units.byteCount(text, of: "roll-over-bytes"))
    }
    switch values["location"] ?? "follow" {
    case "follow": break
    case "keep": configuration.keepsOrigin = true
    case let text: throw .usage("--location \(text.shown): unknown. Choose follow or keep.")
    }
    configuration.digest = try digest(values)
    if configuration.digest != nil, configuration.resumable == .never {
      throw .usage(
        "--digest \((values["digest"] ?? "").shown) requires resumable uploads, and --resumable never turns them off. Leave one of them out."
      )
    }
    if let path = values["bearer-token-file"] {
      configuration.bearerToken = { (try? token(inFile: path)) ?? nil }
    }
  }

  /// The longest time without an acknowledgement after the first signal.
  static func finishTimeout(_ values: CommandLineSyntax.Values) throws(CommandError) -> Duration {
    try Units.duration(values["finish-timeout"] ?? "20s", of: "finish-timeout")
  }

  static func digest(_ values: CommandLineSyntax.Values) throws(CommandError) -> DigestAlgorithm? {
    guard let text = values["digest"], text != "none" else { return nil }
    guard let algorithm = DigestAlgorithm(rawValue: text) else {
      throw .usage("--digest \(text.shown): unknown. Choose sha-256, sha-512 or none.")
    }
    return algorithm
  }

  /// The value of `--content-type`, or its default.
  static func contentType(_ values: CommandLineSyntax.Values) throws(CommandError) -> String {
    guard let text = values["content-type"] else { return "application/octet-stream" }
    guard MediaType.isValid(text) else {
      throw .usage(
        "--content-type \(text.shown): invalid media type. Write TYPE/SUBTYPE, for example text/plain or \"text/plain; charset=utf-8\"."
      )
    }
    return text
  }

  private static func field(_ line: String) throws(CommandError) -> HeaderFields {
    guard let colon = line.firstIndex(of: ":") else {
      throw .usage("--header \(line.shown) has no colon. Write 'Name: value'.")
    }
    let name = String(line[..<colon])
    guard !UploadRequest.isReserved(fieldName: name) else {
      throw .usage("--header \(line.shown) cannot be sent: the upload sets \(name) itself. Leave it out.")
    }
    var request = UploadRequest(url: "http://localhost/")
    request.fields = HeaderFields(lines: [line])
    do throws(UploadError) { try request.validate() } catch {
      throw .usage("--header \(line.shown): \(error.description)")
    }
    return request.fields
  }

  /// The values that Linux accepts for TCP_MAXSEG: `TCP_MIN_MSS` to `MAX_TCP_WINDOW`.
  static let segmentSizes = 88...32_767

  /// A time that libcurl and the kernel count in milliseconds, in 31 bits. Zero would select their own default.
  private static func time(_ text: String, of option: String) throws(CommandError) -> Duration {
    try Units.duration(text, of: option, atLeast: .milliseconds(1), atMost: .seconds(24 * 86400))
  }

  private static func method(_ text: String) throws(CommandError) -> String {
    let known = ["POST", "PUT", "PATCH"]
    if known.contains(text.uppercased()), text != text.uppercased() {
      throw .usage("--method \(text.shown): a method is written in capital letters. Write \(text.uppercased()).")
    }
    if ["GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "CONNECT"].contains(text.uppercased()) {
      throw .usage("--method \(text.shown): a request with this method carries no content. Choose POST, PUT or PATCH.")
    }
    var request = UploadRequest(url: "http://localhost/")
    request.method = text
    do throws(UploadError) { try request.validate() } catch {
      throw .usage("--method \(text.shown): \(error.description). Choose POST, PUT or PATCH.")
    }
    return text
  }

  /// The proxy that libcurl will use, from the option or from the environment.
  private static func checkProxy(_ request: UploadRequest) throws(CommandError) {
    func check(_ proxy: String, _ name: String) throws(CommandError) {
      guard !UploadRequest.isProxy(proxy) else { return }
      throw .usage(
        "\(name) \(UploadRequest.withoutSecrets(proxy).shown): invalid URL of a proxy. Write http://HOST:PORT, or a URL that begins with https, socks4, socks4a, socks5 or socks5h."
      )
    }
    if let proxy = request.proxy { return try check(proxy, "--proxy") }
    guard request.unixSocket == nil else { return }
    let isSecure = request.url.lowercased().hasPrefix("https:")
    // In libcurl's order. HTTP_PROXY is not used, because the client of a CGI program can set it.
    for name in (isSecure ? ["https_proxy", "HTTPS_PROXY"] : ["http_proxy"]) + ["all_proxy", "ALL_PROXY"] {
      guard let value = getenv(name).map({ String(cString: $0) }), !value.isEmpty else { continue }
      return try check(value, "the environment variable \(name)")
    }
  }

  private static func socket(_ path: String) throws(CommandError) -> String {
    var status = stat()
    guard stat(path, &status) == 0 else {
      throw .usage(
        "--unix-socket \(path.shown): \(String(cString: strerror(errno))). Start the server that listens there first.")
    }
    guard status.st_mode & S_IFMT == S_IFSOCK else {
      throw .usage("--unix-socket \(path.shown): not a socket. Name the socket that the server listens on.")
    }
    return path
  }

  /// - Throws: ``CommandError`` for more than this machine can hold. The message names the maximum.
  static func capacity(
    _ text: String, bytesPerSecond: Int, memory: UInt64 = physicalMemory
  ) throws(CommandError) -> CircularBuffer.Capacity {
    if Units.lacksUnit(text), Units.byteCount(text) != nil {
      throw .usage(
        "--buffer \(text.shown): the unit is missing. Write \(text)B, \(text)s, or another unit such as MiB or min.")
    }
    let capacity: CircularBuffer.Capacity
    var isTime = false
    if Double(text) == nil, let count = Units.byteCount(text) {
      capacity = .bytes(count)
    } else if Double(text) != nil || Units.isSize(text) {
      let most = max(1, min(memory, UInt64(Units.largestByteCount)) >> 20)
      throw .usage("--buffer \(text.shown): invalid size. Write a size from 1B to \(most)MiB, or a time from 1ms.")
    } else {
      isTime = true
      capacity = .time(
        try Units.duration(text, of: "buffer", atLeast: .milliseconds(1)), bytesPerSecond: bytesPerSecond)
    }
    guard UInt64(capacity.byteCount) > memory else { return capacity }
    let needed =
      isTime
      ? "\(Units.text(bytes: UInt64(capacity.byteCount))) at \(Units.text(bytes: UInt64(bytesPerSecond))) per second"
      : Units.text(bytes: UInt64(capacity.byteCount))
    let most =
      isTime
      ? Units.brief(.seconds(Int64(clamping: memory / UInt64(max(1, bytesPerSecond))))) : "\(memory >> 20)MiB"
    throw .usage(
      "--buffer \(text.shown) requires \(needed), and this machine has \(Units.text(bytes: memory)) of memory. Choose at most \(most)."
    )
  }

  private static var physicalMemory: UInt64 {
    let (bytes, overflows) = UInt64(max(0, sysconf(Int32(_SC_PHYS_PAGES)))).multipliedReportingOverflow(
      by: UInt64(max(0, sysconf(Int32(_SC_PAGESIZE)))))
    return overflows || bytes == 0 ? .max : bytes
  }

  /// The source of the token in words, or nil without a token.
  static func tokenPlace(_ values: CommandLineSyntax.Values) -> String? {
    values["bearer-token-file"].map { $0.shellQuoted }
      ?? (getenv("SLUICE_BEARER_TOKEN") != nil ? "$SLUICE_BEARER_TOKEN" : nil)
  }

  /// From a file or the environment, never from the command line, which every user of the machine can read.
  private static func bearerToken(_ values: CommandLineSyntax.Values) throws(CommandError) -> String? {
    guard let path = values["bearer-token-file"] else {
      guard let token = getenv("SLUICE_BEARER_TOKEN").map({ String(cString: $0) }) else { return nil }
      guard UploadRequest.canSend(token: token) else {
        let fault = token.isEmpty ? "it is empty" : "it has characters that cannot be sent"
        throw .usage("$SLUICE_BEARER_TOKEN is not a valid token: \(fault). Set it to one token, or unset it.")
      }
      return token
    }
    return try token(inFile: path)
  }

  /// The token that the file contains now, or nil.
  static func currentToken(inFile path: String) -> String? { try? token(inFile: path) }

  /// Whether systemd created the file for this process (systemd.exec(5), `LoadCredential=`).
  private static func isCredential(_ path: String) -> Bool {
    guard let directory = getenv("CREDENTIALS_DIRECTORY").map({ String(cString: $0) }), !directory.isEmpty else {
      return false
    }
    return path.hasPrefix(directory + "/")
  }

  private static func token(inFile path: String) throws(CommandError) -> String? {
    var bytes = try InputFile.contents(of: path, option: "bearer-token-file", limit: 16 * 1024, isReadAgain: true)[...]
    while let last = bytes.last, last == 0x0a || last == 0x0d || last == 0x20 { bytes.removeLast() }
    // A unit names its credential even if the server requires no token.
    if bytes.isEmpty, isCredential(path) { return nil }
    guard !bytes.isEmpty, bytes.allSatisfy({ $0 > 0x20 && $0 < 0x7f }) else {
      throw CommandError(
        .badData,
        "--bearer-token-file \(path.shown): \(bytes.isEmpty ? "the file is empty" : "the token has characters that cannot be sent"). Write one token into it."
      )
    }
    return String(decoding: bytes, as: UTF8.self)
  }

  private static func readable(_ path: String, _ option: String) throws(CommandError) -> String {
    try InputFile.checkIsReadAgain(path, option: option)
    return path
  }
}
