// sluice load

internal import EventLoops
internal import Glibc
internal import HTTPServer
internal import JSONDocuments
internal import LiveStreaming
internal import LoadReports
internal import LoadTesting
internal import Synchronization
internal import UploadClient

enum Load {
  static let syntax = CommandLineSyntax(
    name: "load", summary: "Load-tests a server with many paced live streams.",
    operands: ["URL…"],
    options: [
      Option("streams", short: "n", value: "N", "number of live streams (default: 1)"),
      Option("duration", short: "d", value: "T", "duration of the run, including the ramp (default: 10s)"),
      Option(
        "stage", value: "T:N",
        "reach N live streams after another T, instead of -n, -d and --ramp; with --arrival-rate, N per second "
          + "(repeatable; default: none)",
        mayRepeat: true),
      Option("ramp", value: "T", "time over which the streams start (default: 0)"),
      Option(
        "profile", short: "p", value: "P",
        "content and pace of a stream: mic, heartbeat, bulk, or a JSON file (default: mic)"),
      Option("rate", value: "SIZE", "sending rate of each stream in bytes per second (default: the profile's)"),
      Option("chunk", value: "T", "time between two messages of a stream (default: the profile's)"),
      Option("json", value: "FILE", "file for the report as JSON, or - for standard output (default: none)"),
      Option("html", value: "FILE", "file for the report as a web page (default: none)"),
      Option("csv", value: "FILE", "file for one row per second as CSV, or - for standard output (default: none)"),
      Report.failIf,
      Option("threads", value: "K", "number of network loops (default: 1)"),
      Option("part", value: "K/N", "run only part K of N, for N processes or machines (default: 1/1)"),
      Option(
        "i-may-load-this", value: "HOST", "permit load on this host (repeatable; default: only this machine)",
        mayRepeat: true),
      StreamOptions.header, StreamOptions.token, StreamOptions.progress,
    ],
    topics: [more, Report.metrics],
    notes: ["Metrics of --fail-if: \(LoadMetric.families.joined(separator: ", ")). sluice help metrics explains them."],
    example: "sluice load http://localhost:8080/ -n 1000 -d 60s --html report.html")

  /// Each stream has its own ID, and `--grace` limits the wait at the end.
  private static let connection = StreamOptions.connection.options.filter {
    !["stream-id", "finish-timeout"].contains($0.name)
  }

  static let more = HelpTopic(name: "load-options", title: "More options of sluice load", options: own + connection)

  private static let own = [
    Option("request-per-message", "send each message as a separate request, over persistent connections"),
    Option(
      "arrival-rate", value: "N/s",
      "begin N requests per second regardless of the server; requires --request-per-message (default: the profile's)"),
    Option(
      "max-under-way", value: "N",
      "drop arrivals while N requests are in progress; requires --arrival-rate (default: 1000)"),
    Option("body", value: "KIND", "content to send: pattern, random, zeros, or a file (default: pattern)"),
    Option("drop-every", value: "T", "cut each connection about every T; with HTTP/2, each stream (default: never)"),
    Option("slow-fraction", value: "F", "fraction of the streams that are slow, 0 to 1 (default: 0)"),
    Option("slow-rate", value: "SIZE", "bytes per second of a slow stream's connection (default: 1000)"),
    Option("seed", value: "N", "seed of the random numbers (default: a new one per run)"),
    Option("buffer", value: "SIZE", "bytes that a stream keeps until they are acknowledged (default: 1MiB)"),
    Option("grace", value: "T", "time after the end to complete requests in progress (default: 10s)"),
    Option("give-up", value: "T", "fail a stream after T without an acknowledgement (default: 30s)"),
    Option(
      "local-address", value: "ADDR", "connect from this address (repeatable; default: chosen by the system)",
      mayRepeat: true),
    Option("http2", "use HTTP/2, and fail if the server does not support it (default: HTTP/1.1)"),
    Option("streams-per-connection", value: "N", "number of streams that share an HTTP/2 connection (default: 100)"),
    Option("max-bytes", value: "SIZE", "end the run after sending SIZE (default: 1TiB)"),
    Option("max-connections", value: "N", "end the run after opening N connections (default: 1000000)"),
    StreamOptions.resumable,
    Option("roll-over-after", value: "T", "begin a new request after T (default: 2min)"),
  ]

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    // All mistakes in the options are reported before the first connection.
    let thresholds = try Report.thresholds(values)
    let progress = try ProgressKind(values)
    let view = LoadView(progress: progress)
    let configuration = try configuration(values)
    try Report.checkOutputs(values)
    let test: LoadTest
    do throws(LoadError) { test = try LoadTest(configuration) } catch { throw CommandError(error) }
    let figures = LoadFigures()
    let listener = try MetricsOption.listener(values["metrics"]) { $0(figures.page) }
    defer { listener?.stop() }
    let (report, wasStopped) = try measure(test, listener, announcement(configuration)) { progress in
      figures.observe(progress)
      view.show(LoadSnapshot(progress, configuration))
    }
    Console.shared.keepStatus()
    if let reason = test.endReason { Console.shared.say("ended early: \(reason.message)") }
    // The table is for standard output, unless a program reads that.
    if progress == .json || ["json", "csv"].contains(where: { values[$0] == "-" }) {
      for line in report.table.split(separator: "\n", omittingEmptySubsequences: false) {
        Console.shared.say(String(line))
      }
      Console.shared.flush()
    } else {
      // The progress comes first.
      Console.shared.flush()
      Report.show(report.table)
    }
    return try Report.write(Report.outputs(of: report, values, judgedBy: thresholds)) {
      let verdict = Report.judge(report, by: thresholds)
      return wasStopped ? .interrupted : Report.exitCode(report, thresholds, verdict)
    }
  }

  private static func announcement(_ configuration: LoadConfiguration) -> String {
    let profile = configuration.profile
    let arrivals = configuration.arrivals.map { arrivals in
      arrivals.stages.isEmpty ? "\(arrivals.rate)/s" : "\(arrivals.rate)/s at first"
    }
    let rate =
      arrivals ?? (profile.isPaced ? "\(Units.text(bytes: profile.rate))/s each" : "as fast as the server accepts them")
    let part = configuration.part
    return
      "loading \(UploadRequest.withoutSecrets(configuration.request.url))"
      + (configuration.otherURLs.isEmpty ? "" : " and \(configuration.otherURLs.count) more URLs in turn")
      + ": \(configuration.streams) live streams"
      + (part.count > 1 ? ", part \(part.index) of \(part.count)" : "")
      + ", \(rate), for \(Units.text(configuration.duration)); --seed \(configuration.seed); press Ctrl-C to end it"
  }

  /// Runs the test on a separate thread, while this thread waits for signals.
  private static func measure(
    _ test: LoadTest, _ metrics: MetricsListener?, _ announcement: String,
    progress: @escaping @Sendable (LoadProgress) -> Void
  ) throws(CommandError) -> (report: LoadReport, wasStopped: Bool) {
    let outcome = Mutex<Result<LoadReport, LoadError>?>(nil)
    var wasStopped = false
    do throws(SystemError) {
      // Comes before the first thread, so that no thread takes a signal from this one.
      let signals = try Signals()
      try Console.shared.beginQueueing()
      let ended = try EventCounter()
      Console.shared.say(announcement)
      try metrics?.begin()
      let thread = try NamedThread("sluice-load") {
        let result: Result<LoadReport, LoadError>
        do throws(LoadError) {
          result = .success(try test.run(progress: progress))
        } catch {
          result = .failure(error)
        }
        outcome.withLock { $0 = result }
        ended.signal()
      }
      signals.wait(for: ended) { count in
        wasStopped = true
        if count > 1 { exit(ExitCode.interrupted.rawValue) }
        test.stop()
        return .finishes
      }
      thread.join()
      signals.release()
    } catch {
      throw CommandError(machine: error)
    }
    switch outcome.withLock({ $0 }) {
    case .success(let report)?: return (report, wasStopped)
    case .failure(let error)?: throw CommandError(error)
    // The thread has ended without a report, although it reports before it ends.
    case nil: throw CommandError(.inputOutput, "the load test ended without a report")
    }
  }

  // MARK: Options

  /// The same limit as in a profile: docs/load-profiles.md.
  static let longest = Duration.seconds(30 * 86_400)
  private static let highestRate = 10_000_000_000

  /// These have no effect on a stream with one request per message.
  private static let optionsOfStreams = ["buffer", "roll-over-after", "give-up", "give-up-on-refusal", "retry-ceiling"]

  private static func configuration(_ values: CommandLineSyntax.Values) throws(CommandError) -> LoadConfiguration {
    var request = try StreamOptions.request(values)
    // The version does not depend on the negotiation in TLS. Two runs must be comparable, and the report names the
    // version.
    request.httpVersion = values.has("http2") ? .http2 : .http1
    var configuration = LoadConfiguration(request: request)
    configuration.otherURLs = try values.operands.dropFirst().map { (url) throws(CommandError) in
      try StreamOptions.request(values, url: url).url
    }
    configuration.profile = try profile(values)
    if let text = values["streams"] {
      configuration.streams = try Units.integer(text, of: "streams", in: 1...10_000_000)
    }
    if let text = values["duration"] {
      configuration.duration = try Units.duration(text, of: "duration", atLeast: .milliseconds(1), atMost: longest)
    }
    if let text = values["ramp"] { configuration.ramp = try Units.duration(text, of: "ramp", atMost: longest) }
    try setSchedule(values, &configuration)
    guard configuration.ramp <= configuration.duration else {
      throw .usage(
        "--ramp \((values["ramp"] ?? "").shown) is longer than --duration \(values["duration"] ?? "10s"). Choose a shorter one."
      )
    }
    if let text = values["threads"] { configuration.threads = try Units.integer(text, of: "threads", in: 1...256) }
    if let text = values["part"] { configuration.part = try part(text) }
    configuration.seed =
      try values["seed"].map { (text) throws(CommandError) in
        guard let seed = UInt64(text) else {
          throw .usage("--seed \(text.shown): invalid number. Write a whole number below 2^64.")
        }
        return seed
      } ?? UInt64.random(in: 0...UInt64(UInt32.max))
    if let text = values["resumable"] {
      guard let use = LiveStreamConfiguration.ResumableUse(rawValue: text) else {
        throw .usage("--resumable \(text.shown): unknown. Choose auto, always or never.")
      }
      configuration.resumable = use
    }
    if let text = values["roll-over-after"] {
      configuration.rollOverAfter = try Units.duration(
        text, of: "roll-over-after", atLeast: .milliseconds(1), atMost: longest)
    }
    if let text = values["buffer"] { configuration.buffer = try Units.byteCount(text, of: "buffer") }
    configuration.sendsRequestPerMessage = values.has("request-per-message")
    if configuration.sendsRequestPerMessage {
      guard configuration.resumable == .auto || configuration.resumable == .never else {
        throw .usage(
          "--request-per-message and --resumable \(configuration.resumable.rawValue) contradict each other. Choose one."
        )
      }
      for option in Self.optionsOfStreams where values.has(option) {
        throw .usage(
          "--request-per-message and --\(option) contradict each other: a message is sent once, in one request. "
            + "Choose one.")
      }
      configuration.resumable = .never
    }
    if let text = values["grace"] { configuration.grace = try Units.duration(text, of: "grace", atMost: longest) }
    if let text = values["retry-ceiling"] {
      configuration.retryCeiling = try Units.duration(
        text, of: "retry-ceiling", atLeast: .milliseconds(1), atMost: longest)
    }
    if let text = values["give-up-on-refusal"] {
      configuration.giveUpOnRefusalAfter = try Units.duration(text, of: "give-up-on-refusal", atMost: longest)
    }
    if let text = values["give-up"] {
      configuration.giveUpAfter = try Units.duration(text, of: "give-up", atMost: longest)
    }
    configuration.localAddresses = values.all("local-address")
    if let text = values["streams-per-connection"] {
      configuration.streamsPerConnection = try Units.integer(text, of: "streams-per-connection", in: 1...1_000_000)
      guard values.has("http2") else {
        throw .usage(
          "--streams-per-connection requires --http2: over HTTP/1.1, each stream has its own connection. Add --http2.")
      }
    }
    configuration.permittedHosts = values.all("i-may-load-this")
    if let text = values["max-bytes"] {
      configuration.maximumByteCount = UInt64(try Units.byteCount(text, of: "max-bytes"))
    }
    if let text = values["max-connections"] {
      configuration.maximumConnectionCount = UInt64(
        try Units.integer(text, of: "max-connections", in: 1...1_000_000_000))
    }
    return configuration
  }

  private static func part(_ text: String) throws(CommandError) -> (index: Int, count: Int) {
    let numbers = text.split(separator: "/", omittingEmptySubsequences: false).map { Int($0) }
    guard numbers.count == 2, let index = numbers[0], let count = numbers[1], count >= 1, (1...count).contains(index)
    else { throw .usage("--part \(text.shown): invalid part. Write 1/4 for the first of four.") }
    return (index, count)
  }

  private static func profile(named name: String) throws(CommandError) -> LoadProfile {
    if let found = LoadProfile.builtIn.first(where: { $0.name == name }) { return found }
    guard name.hasSuffix(".json") || name.contains("/") else {
      throw .usage("--profile \(name.shown): unknown. Choose mic, heartbeat, bulk or a file that ends in .json.")
    }
    let text = try InputFile.contents(of: name, option: "profile")
    do throws(DocumentError) {
      return try LoadProfile(json: text, file: name)
    } catch {
      throw CommandError(.badData, "--profile: \(error.description)")
    }
  }

  private static func profile(_ values: CommandLineSyntax.Values) throws(CommandError) -> LoadProfile {
    var profile = try profile(named: values["profile"] ?? "mic")
    if let text = values["rate"] {
      profile.size = .rate(UInt64(try Units.byteRate(text, of: "rate", in: 1...highestRate)))
    }
    if let text = values["chunk"] {
      profile.chunk = try Units.duration(text, of: "chunk", atLeast: .milliseconds(1), atMost: .seconds(3600))
        .nanoseconds
    }
    if let text = values["body"] {
      switch text {
      case "pattern": profile.body = .pattern
      case "random": profile.body = .random
      case "zeros": profile.body = .zeros
      default:
        try InputFile.check(text, option: "body")
        profile.body = .file(text)
      }
    }
    if let text = values["drop-every"] {
      profile.faults.dropEvery = .exponential(
        mean: try Units.duration(text, of: "drop-every", atLeast: .milliseconds(1), atMost: longest).nanoseconds)
    }
    if let text = values["slow-fraction"] {
      guard let fraction = Quantity.share(text) ?? Double(text), (0...1).contains(fraction) else {
        throw .usage("--slow-fraction \(text.shown): invalid fraction. Write 0% to 100%, or 0 to 1.")
      }
      profile.faults.slowFraction = fraction
    }
    if let text = values["slow-rate"] {
      profile.faults.slowRate = UInt64(try Units.byteRate(text, of: "slow-rate", in: 1...highestRate))
      guard values.has("slow-fraction") || profile.faults.slowFraction > 0 else {
        throw .usage("--slow-rate \(text.shown) requires --slow-fraction. Add it.")
      }
    }
    return profile
  }
}

extension LoadSnapshot {
  fileprivate init(_ progress: LoadProgress, _ configuration: LoadConfiguration) {
    self.init(
      elapsed: .nanoseconds(progress.elapsed), planned: configuration.duration, plannedStreams: configuration.share,
      chunk: configuration.arrivals == nil ? configuration.profile.chunk : 0, second: progress.interval,
      totals: progress.totals,
      processors: Double(progress.interval.processorTime) / 1e9)
  }
}

extension CommandError {
  fileprivate init(_ error: LoadError) {
    let code: ExitCode =
      switch error {
      case .invalid, .tooManyConnections, .cannotShareConnections: .usage
      case .notPermitted: .notPermitted
      case .unreadableBody: .noInput
      case .tooFewDescriptors, .tooFewPorts, .resources: .inputOutput
      }
    self.init(code, error.message)
  }
}

extension LoadError {
  /// The problem and the remedy, with the options of `sluice load`.
  fileprivate var message: String {
    switch remedy {
    case .permission(let host): "\(problem). If you are allowed to load-test it, add --i-may-load-this \(host)."
    case .moreConnections: "\(problem). Raise --max-connections."
    case .secureOrSeparateConnections: "\(problem). Use https://, or --streams-per-connection 1."
    case .moreDescriptors(let needed):
      "\(problem). Raise the limit with `ulimit -n \(needed)` (as root, or LimitNOFILE= in systemd), or divide the streams with --part."
    case .moreAddresses(let count):
      "\(problem). Name \(count) addresses of this machine with --local-address, or widen net.ipv4.ip_local_port_range."
    case nil: description
    }
  }
}

extension LoadEndReason {
  /// The reason, with the option of a limit.
  fileprivate var message: String {
    switch self {
    case .byteLimit(let limit): "the limit of \(limit) bytes (--max-bytes) was reached"
    case .connectionLimit(let limit): "the limit of \(limit) connections (--max-connections) was reached"
    case .stopped, .failed: description
    }
  }
}
