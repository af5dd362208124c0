// sluice serve

internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import UploadClient
internal import UploadServer

enum Serve {
  static let syntax = CommandLineSyntax(
    name: "serve", summary: "Receives streams, stores them in a directory, and prints a JSON line per event.",
    operands: [],
    options: [
      Option(
        "listen", short: "l", value: "ADDR:PORT",
        "address to listen on, or unix:PATH (repeatable; default: 127.0.0.1:8080)", mayRepeat: true),
      Option("directory", value: "DIR", "where to store streams (default: .)"),
      Option("discard", "acknowledge streams, but store nothing (for load tests)"),
      Option(
        "durability", value: "D",
        "sync acknowledged bytes to disk: always (before acknowledging), interval (once per second) or none "
          + "(default: interval)"),
      Option(
        "token-file", value: "FILE",
        "accept only tokens whose SHA-256 is in FILE, one per line (default: accept everyone)"),
      Option(
        "public-url", value: "URL", "beginning of the URLs of uploads, if a front end rewrites paths (default: none)"),
      Option("max-body", value: "SIZE", "largest body of a request (default: no limit)"),
      Option("finish-after", value: "T", "close a live recording that receives nothing for T (default: 1h)"),
      Option("head-timeout", value: "T", "longest time to receive the head of a request (default: 30s)"),
      Option("body-timeout", value: "T", "longest time without data within a body (default: 0, no limit)"),
      Option("idle-timeout", value: "T", "longest time between two requests on a connection (default: 75s)"),
      Option(
        "drain-timeout", value: "T",
        "longest time after the first signal until requests, clients and the disk finish (default: 10s)"),
      Option("receive-buffer", value: "SIZE", "size of a socket's receive buffer, SO_RCVBUF (default: the kernel's)"),
      Option("max-segment", value: "SIZE", "largest TCP segment, TCP_MAXSEG (default: the kernel's)"),
      Option("threads", value: "N", "number of threads that serve connections (default: 1)"),
      SplitOption.option,
      Option(
        "names", value: "PATTERN",
        "link live recordings under names with their start time, or none (default: "
          + "{name}/%Y-%m-%dT%H-%M-%SZ, for split recordings)"),
      Option("allow-download", "answer GET with complete recordings, each only for the token that created it"),
      Option("no-sidecars", "write no .sidecar files, and do not correct sizes in WAV headers"),
      StreamOptions.metrics,
    ],
    topics: [StoreOptions.topic, limits, KeepOptions.topic],
    example: "sluice serve --listen 0.0.0.0:8080 --directory recordings")

  static let limits = HelpTopic(
    name: "uploads", title: "Limits of sluice serve",
    options: [
      Option("max-size", value: "SIZE", "largest upload or plain stream (default: no limit)"),
      Option("max-append-size", value: "SIZE", "largest content of one request of an upload (default: no limit)"),
      Option(
        "min-append-size", value: "SIZE",
        "smallest content of one request of an upload, except the last (default: 0)"),
      Option("max-age", value: "T", "delete an idle upload of known length after T (default: 24h)"),
      Option("max-hole", value: "SIZE", "largest hole that one request may leave (default: 64GiB)"),
      Option(
        "max-uploads", value: "N",
        "most unfinished uploads and plain requests at a time (default: 10000; with --discard: 50000)"),
      Option(
        "max-uploads-per-client", value: "N",
        "the same limit per token, or per address or IPv6 /64 (default: no limit)"),
      Option("quota", value: "SIZE", "total size of unfinished streams, including holes (default: no limit)"),
      Option(
        "quota-per-client", value: "SIZE",
        "total size of unfinished streams per token, or per address or IPv6 /64 (default: no limit)"),
      Option(
        "max-downloads", value: "N", "most downloads at the same time, at most half for one client (default: 100)"),
      Option(
        "max-finished", value: "N", "records of finished uploads to keep, at most half for one client (default: 10000)"),
      Option(
        "max-finished-size", value: "SIZE", "total size of these records, at most half for one client (default: 64MiB)"),
      Option(
        "proxied-interims", value: "N",
        "most 104 responses to a request that comes through a proxy: a number or all (default: 4; nginx and Caddy before 2.9: 0)"
      ),
      Option("min-rate", value: "SIZE", "lowest rate of a request in bytes per second (default: 0, no limit)"),
    ])

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    allowDescriptors()
    let drainTimeout =
      try values["drain-timeout"].map { text throws(CommandError) in try Units.duration(text, of: "drain-timeout") }
      ?? .seconds(10)
    let configuration = try configuration(values)
    let signals: Signals
    do throws(SystemError) {
      // Comes before the first thread, so that no thread takes a signal from this one. Broker connections have their
      // own threads.
      signals = try Signals()
    } catch {
      throw CommandError(machine: error)
    }
    let server = try signals.endProcess(with: .done) { () throws(CommandError) in try open(configuration) }
    let storesFiles = !values.has("discard") && values["store"] == nil
    let disk = storesFiles ? FreeDiskSpace(directory: values["directory"] ?? ".") : nil
    let isReady = { @Sendable in server.isReady }
    let metrics = try MetricsOption.listener(values["metrics"], isReady: isReady) { answer in
      server.figures { page in
        guard let disk else { return answer(page) }
        disk.add(to: page, answer)
      }
    }
    defer { metrics?.stop() }
    do throws(SystemError) {
      try Console.shared.beginQueueing()
      let ended = try EventCounter()
      try metrics?.begin()
      for note in server.storageNotes { Console.shared.say(note) }
      for address in server.localAddresses { Console.shared.say("listening on \(address)") }
      try watch(server)
      let thread = try NamedThread("sluice-server") {
        server.serveOnThisThread()
        ended.signal()
      }
      ServiceManager.current.isReady(
        "listening on \(server.localAddresses.map { "\($0)" }.joined(separator: ", "))")
      var isInterrupted = false
      let hasEnded = signals.waitInTime(for: ended) { count in
        ServiceManager.current.isStopping()
        isInterrupted = count > 1
        if !isInterrupted {
          ServiceManager.current.extendTimeout(by: drainTimeout + leastDiskTime)
          Console.shared.say(
            storesFiles
              ? "stopping: unfinished streams stay as .part files and can be continued. A second signal stops at once."
              : "stopping: the server reports the offsets of all uploads to their clients. A second signal stops at once."
          )
        }
        let limit = isInterrupted ? .zero : drainTimeout
        server.drain(within: limit)
        return max(limit, leastDiskTime)
      }
      // A thread that waits for a disk may never end.
      if hasEnded { thread.join() }
      if isInterrupted { return .interrupted }
      if hasEnded { return exitCode(unsyncedUploadCount: server.unsyncedUploadCount) }
    } catch {
      throw CommandError(machine: error)
    }
    throw CommandError(
      .inputOutput,
      "the server did not end within --drain-timeout \(Units.text(drainTimeout)): "
        + (storesFiles
          ? "the disk is too slow. The next start completes the unfinished work."
          : "the brokers are too slow. Clients can continue their uploads at any other server."))
  }

  /// The exit code after an orderly end.
  static func exitCode(unsyncedUploadCount: Int) -> ExitCode {
    if unsyncedUploadCount == 0 { return .done }
    Console.shared.say(
      "sluice: the disk refused acknowledged bytes of \(unsyncedUploadCount) uploads. The log has its errors. Check the "
        + "disk before the next start.")
    return .inputOutput
  }

  /// The disk has at least this time to store acknowledged bytes, even if `--drain-timeout` is shorter.
  private static let leastDiskTime = Duration.seconds(1)

  /// Sends watchdog messages to the service manager, as long as each loop of the server runs.
  private static func watch(_ server: UploadServer) throws(SystemError) {
    guard let interval = ServiceManager.current.watchdogInterval else { return }
    let loop = try EventLoop()
    @Sendable func beat() {
      server.figures { _ in ServiceManager.current.isAlive() }
      loop.schedule(after: interval, beat)
    }
    loop.execute(beat)
    try NamedThread("sluice-watchdog") { loop.run() }.detach()
  }

  /// The soft limit is for programs that use select(2), which fails beyond 1,024. epoll(7) has no such limit.
  private static func allowDescriptors() {
    var limit = rlimit()
    let resource = __rlimit_resource_t(RLIMIT_NOFILE.rawValue)
    guard getrlimit(resource, &limit) == 0, limit.rlim_cur < limit.rlim_max else { return }
    limit.rlim_cur = limit.rlim_max
    // If the limit does not change, an event reports it when descriptors run out.
    setrlimit(resource, &limit)
  }

  private static func configuration(
    _ values: CommandLineSyntax.Values
  ) throws(CommandError) -> UploadServer.Configuration {
    let given = values.all("listen")
    var addresses: [ListenAddress] = []
    do throws(ListenError) {
      for text in given.isEmpty ? ["127.0.0.1:8080"] : given { addresses.append(try ListenAddress(text)) }
    } catch {
      if case .malformedAddress(let text) = error, let digits = text.split(separator: ":").last,
        digits.allSatisfy({ $0.isASCII && $0.isNumber }), UInt16(digits) == nil
      {
        throw .usage("--listen \(text.shown): the port is above 65535. Choose a port from 0 to 65535.")
      }
      throw .usage("--listen: \(error.description)")
    }
    if values.has("discard"), values.has("directory") {
      throw .usage("--discard stores nothing, so it excludes --directory. Leave one of them out.")
    }
    let brokers = try StoreOptions.parse(values)
    let storage: UploadServer.Storage =
      brokers.map { .brokers($0) } ?? (values.has("discard") ? .discarding : .directory(values["directory"] ?? "."))
    var configuration = UploadServer.Configuration(listen: addresses, storage: storage) {
      Console.shared.put($0.jsonLine)
    }
    if let text = values["max-body"] {
      configuration.maximumBodyLength = UInt64(try Units.byteCount(text, of: "max-body"))
    }
    if let text = values["max-hole"] {
      configuration.maximumHoleLength = UInt64(try Units.byteCount(text, of: "max-hole"))
    }
    if let text = values["durability"] {
      guard let durability = Durability(rawValue: text) else {
        throw .usage("--durability \(text.shown): unknown. Choose none, interval or always.")
      }
      configuration.durability = durability
    }
    if let text = values["threads"] {
      configuration.threads = try Units.integer(text, of: "threads", in: 1...256)
    }
    if let text = values["finish-after"] {
      configuration.finishAfter = try Units.duration(text, of: "finish-after", atLeast: .seconds(1))
    }
    if let path = values["token-file"] { try InputFile.check(path, option: "token-file") }
    configuration.tokenFile = values["token-file"]
    configuration.writesSidecars = !values.has("no-sidecars")
    configuration.split = try SplitOption.parse(values.all("split")).map {
      RecordingSplit(duration: $0.duration, size: $0.size, timeOfDay: $0.timeOfDay)
    }
    if configuration.split != nil, values.has("no-sidecars") || values.has("discard") {
      throw .usage("--split requires files and their sidecars. Leave out --no-sidecars and --discard.")
    }
    if let pattern = values["names"] {
      configuration.names = try names(pattern)
    }
    configuration.retention = try KeepOptions.parse(values)
    if configuration.retention != nil, values.has("no-sidecars") || values.has("discard") {
      throw .usage(
        "--keep and its related options require recordings and their sidecars. Leave out --no-sidecars and --discard.")
    }
    configuration.allowsDownloads = values.has("allow-download")
    if configuration.allowsDownloads, values.has("no-sidecars") || values.has("discard") {
      throw .usage("--allow-download requires recordings and their sidecars. Leave out --no-sidecars and --discard.")
    }
    if let text = values["max-downloads"] {
      guard configuration.allowsDownloads else {
        throw .usage("--max-downloads \(text.shown) requires --allow-download. Add it.")
      }
      configuration.maximumDownloadCount = try Units.integer(text, of: "max-downloads", in: 1...10_000)
    }
    configuration.software = "sluice/\(sluiceVersion)"
    configuration.uploads = try uploads(values)
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
      configuration.maximumSegmentSize = try Units.byteCount(text, of: "max-segment", in: StreamOptions.segmentSizes)
    }
    return configuration
  }

  /// `--names`; nil for none.
  static func names(_ pattern: String) throws(CommandError) -> RecordingNames? {
    let names = RecordingNames(pattern: pattern, includesWhole: true)
    guard names != nil || pattern == "none" else {
      throw .usage(
        "--names \(pattern.shown): invalid pattern. Write a directory, a slash and a name of letters, {name}, {stream}, {part}, %Y, %m, %d, %H, %M and %S, or none."
      )
    }
    return names
  }

  /// Whether the URLs of uploads may begin with this: a path or a URL without a query, in which everything that a URI
  /// does not allow is percent-encoded.
  private static func isPublicURL(_ text: String) -> Bool {
    let octets = Array(text.utf8)
    guard let target = try? RequestTarget(octets.span, method: "GET"), target.query == nil else { return false }
    return target.form == .origin || UploadRequest.origin(of: text) != nil
  }

  private static func uploads(
    _ values: CommandLineSyntax.Values
  ) throws(CommandError) -> UploadLimitsConfiguration {
    var uploads = UploadLimitsConfiguration()
    func size(_ name: String) throws(CommandError) -> UInt64? {
      guard let text = values[name], text != "0" else { return nil }
      return UInt64(try Units.byteCount(text, of: name))
    }
    func count(_ name: String) throws(CommandError) -> Int? {
      guard let text = values[name] else { return nil }
      return try Units.integer(text, of: name, in: 1...10_000_000)
    }
    uploads.maximumSize = try size("max-size")
    uploads.maximumAppendSize = try size("max-append-size")
    uploads.minimumAppendSize = try size("min-append-size")
    if let count = try count("max-finished") {
      uploads.maximumFinishedCount = count
      uploads.maximumFinishedCountPerClient = max(1, count / 2)
    }
    if let size = try size("max-finished-size") {
      uploads.maximumFinishedSize = size
      uploads.maximumFinishedSizePerClient = size / 2
    }
    uploads.quota = try size("quota")
    uploads.quotaPerClient = try size("quota-per-client")
    if let text = values["min-rate"], text != "0" {
      uploads.minimumRate = UInt64(try Units.byteRate(text, of: "min-rate"))
    }
    if values.has("discard") { uploads.maximumCount = UploadLimitsConfiguration.maximumCountWhenDiscarding }
    uploads.maximumCount = try count("max-uploads") ?? uploads.maximumCount
    uploads.maximumCountPerClient = try count("max-uploads-per-client")
    if let least = uploads.minimumAppendSize,
      let most = [uploads.maximumAppendSize, uploads.maximumSize].compactMap(\.self).min(),
      least > most
    {
      throw .usage(
        "--min-append-size \((values["min-append-size"] ?? "").shown) is more than --max-append-size or --max-size allows. Choose a smaller one."
      )
    }
    if let text = values["proxied-interims"] {
      uploads.maximumForwardedInterimCount =
        text == "all" ? nil : try Units.integer(text, of: "proxied-interims", in: 0...1000)
    }
    if let text = values["max-age"] {
      uploads.maximumAge = try Units.duration(text, of: "max-age", atLeast: .seconds(1))
    }
    if let text = values["public-url"] {
      guard isPublicURL(text) else {
        throw .usage("--public-url \(text.shown): invalid URL. Write https://example.com/ingest.")
      }
      uploads.publicURL = text.hasSuffix("/") ? String(text.dropLast()) : text
    }
    return uploads
  }

  private static func open(_ configuration: UploadServer.Configuration) throws(CommandError) -> UploadServer {
    do throws(UploadServerError) {
      return try UploadServer(configuration: configuration)
    } catch {
      throw CommandError(ExitCode(error), error.message)
    }
  }
}

extension ExitCode {
  init(_ error: ListenError) {
    self =
      switch error {
      case .malformedAddress: .usage
      case .unknownHost, .portTaken, .notOurAddress, .cannotListen: .unavailable
      case .portNotPermitted: .notPermitted
      case .resources: .inputOutput
      }
  }

  init(_ error: BrokerError) {
    self =
      switch error {
      case .unreachable, .disconnected, .timedOut, .noResponders: .unavailable
      case .refused where error.lacksJetStream: .unavailable
      case .notAuthorized: .notPermitted
      case .unusableFile: .noInput
      case .unsuitableStream, .shortPayload, .refused, .invalidReply, .messageTooLarge: .protocolBroken
      case .resources: .inputOutput
      }
  }

  init(_ error: UploadServerError) {
    self =
      switch error {
      case .listening(let error): ExitCode(error)
      case .tokenFile(_, let line, _): line == nil ? .noInput : .badData
      case .brokers(let error): ExitCode(error)
      case .notDurable: .protocolBroken
      case .noDirectory, .unreadableDirectory, .unwritableDirectory, .directoryInUse, .collectedDirectory, .resources:
        .inputOutput
      }
  }
}
