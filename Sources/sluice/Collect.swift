// sluice collect URL

internal import EventLoops
internal import LogCollecting
internal import UploadClient
internal import UploadServer

enum Collect {
  static let syntax = CommandLineSyntax(
    name: "collect",
    summary: "Writes the uploads that sluice serve --store keeps in NATS JetStream into files.",
    operands: ["URL[,URL…]"],
    options: [
      Option("directory", value: "DIR", "where to store streams (default: .)"),
      Option("store-stream", value: "NAME", "JetStream stream (default: sluice)"),
      Option(
        "partition", value: "I/N",
        "collect part I of N of the streams, such as 1/3; each collector requires its own directory (default: 1/1)"),
      Option(
        "after-collect", value: "A",
        "keep the messages of a complete recording, or purge them when the recording is on disk (default: keep)"),
      Option("finish-after", value: "T", "close a live recording that receives nothing for T (default: 1h)"),
      Option("max-hole", value: "SIZE", "largest hole that one upload may leave (default: 64GiB)"),
      SplitOption.option,
      Option(
        "names", value: "PATTERN",
        "link live recordings under names with their start time, or none (default: "
          + "{name}/%Y-%m-%dT%H-%M-%SZ, for split recordings)"),
      Option("no-sidecars", "write no .sidecar files, and do not correct sizes in WAV headers"),
    ] + StoreOptions.access,
    example: "sluice collect nats://127.0.0.1:4222 --directory recordings")

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let configuration = try configuration(values)
    let signals: Signals
    do throws(SystemError) {
      // Comes before the first thread, so that no thread takes a signal from this one.
      signals = try Signals()
      try Console.shared.beginQueueing()
    } catch {
      throw CommandError(machine: error)
    }
    let collector = try signals.endProcess(with: .done) { () throws(CommandError) in try open(configuration) }
    let place = "partition \(configuration.partition.text) of \(configuration.stream)"
    Console.shared.say(
      "collecting \(place) behind message \(collector.startSequence) into \(configuration.directory.shown)")
    let outcome = CollectionOutcome()
    do throws(SystemError) {
      guard try run(collector, outcome, signals, place) else { return .interrupted }
    } catch {
      throw CommandError(machine: error)
    }
    if let error = outcome.error.withLock({ $0 }) { throw error.commandError }
    return .done
  }

  /// Collects until a signal or an error. Returns false if a second signal ended it at once.
  private static func run(
    _ collector: LogCollector, _ outcome: CollectionOutcome, _ signals: Signals, _ place: String
  ) throws(SystemError) -> Bool {
    let ended = try EventCounter()
    let thread = try NamedThread("sluice-collector") {
      do throws(LogCollectorError) {
        try collector.run()
      } catch {
        outcome.error.withLock { $0 = error }
      }
      ended.signal()
    }
    ServiceManager.current.isReady("collecting \(place)")
    var isInterrupted = false
    let hasEnded = signals.waitInTime(for: ended) { count in
      ServiceManager.current.isStopping()
      isInterrupted = count > 1
      guard !isInterrupted else { return .zero }
      Console.shared.say("stopping: the next start continues at this point. A second signal stops at once.")
      collector.stop()
      return nil
    }
    if hasEnded { thread.join() }
    return !isInterrupted
  }

  private static func open(_ configuration: LogCollector.Configuration) throws(CommandError) -> LogCollector {
    do throws(LogCollectorError) {
      return try LogCollector(configuration)
    } catch {
      throw error.commandError
    }
  }

  private static func configuration(
    _ values: CommandLineSyntax.Values
  ) throws(CommandError) -> LogCollector.Configuration {
    let list = values.operands[0]
    guard let brokers = BrokerOptions(list: list) else {
      throw .usage("\(list.shown): invalid URL. \(StoreOptions.urls)")
    }
    try StoreOptions.checkFiles(values)
    var configuration = LogCollector.Configuration(
      brokers: try StoreOptions.authorized(brokers, values), stream: try StoreOptions.stream(values),
      directory: values["directory"] ?? "."
    ) { Console.shared.put($0.jsonLine) }
    if let text = values["partition"] {
      guard let partition = StreamPartition(text) else {
        throw .usage("--partition \(text.shown): invalid partition. Write I/N, from 1/1 to 256/256.")
      }
      configuration.partition = partition
    }
    if let text = values["after-collect"] {
      guard text == "keep" || text == "purge" else {
        throw .usage("--after-collect \(text.shown): unknown. Choose keep or purge.")
      }
      configuration.purges = text == "purge"
    }
    if let text = values["finish-after"] {
      configuration.finishAfter = try Units.duration(text, of: "finish-after", atLeast: .seconds(1))
    }
    if let text = values["max-hole"] {
      configuration.maximumHoleLength = UInt64(try Units.byteCount(text, of: "max-hole"))
    }
    configuration.writesSidecars = !values.has("no-sidecars")
    configuration.split = try SplitOption.parse(values.all("split")).map {
      RecordingSplit(duration: $0.duration, size: $0.size, timeOfDay: $0.timeOfDay)
    }
    if configuration.split != nil, values.has("no-sidecars") {
      throw .usage("--split requires sidecars. Leave out --no-sidecars.")
    }
    if let pattern = values["names"] { configuration.names = try Serve.names(pattern) }
    configuration.software = "sluice/\(sluiceVersion)"
    return configuration
  }
}

/// The reason for the end of the collector, or nil after a signal.
private final class CollectionOutcome: Sendable {
  let error = Lock<LogCollectorError?>(nil)
}

extension LogCollectorError {
  fileprivate var commandError: CommandError {
    let code: ExitCode =
      switch self {
      case .noStream: .noDevice
      case .brokers(let error): ExitCode(error)
      case .damagedCheckpoint, .otherSource: .badData
      case .noDirectory, .unreadableDirectory, .unwritableDirectory, .directoryInUse, .disk, .resources: .inputOutput
      }
    return CommandError(code, message)
  }
}
