// sluice mic URL

internal import AudioCapture
internal import Digests
internal import EventLoops
internal import HTTPServer
internal import JSONDocuments
internal import LiveStreaming
internal import MicrophoneStreaming
internal import StreamBuffers
internal import UploadClient

enum Mic {
  static let syntax = CommandLineSyntax(
    name: "mic", summary: "Streams a microphone without end.", operands: ["URL"],
    options: [
      Option("device", short: "D", value: "NAME", "ALSA capture device; see sluice devices (default: default)"),
      Option("rate", short: "r", value: "N", "sample rate in frames per second (default: 48000)"),
      Option("channels", short: "c", value: "N", "samples per frame (default: 1)"),
      Option("format", short: "f", value: "F", "sample format: S16_LE, S24_3LE, S32_LE or FLOAT_LE (default: S16_LE)"),
      Option("period", value: "T", "length of an ALSA period (default: 10ms)"),
      Option("device-buffer", value: "T", "length of the device's ALSA buffer (default: 500ms)"),
      Option("container", value: "C", "file format of the stream: wav or raw (default: wav)"),
      Option("gap-fill", value: "G", "replacement for frames that the device lost: silence or none (default: silence)"),
      Option("duration", short: "d", value: "T", "end after exactly T of audio (default: at a signal; --test: 3s)"),
      SplitOption.option,
      Option("test", "record 3 s, show the level, and send nothing; requires no URL"),
      StreamOptions.buffer(default: "5min"), StreamOptions.overflow(default: "drop-oldest"),
    ] + StreamOptions.shown,
    topics: [SpoolOptions.topic, StreamOptions.resuming, StreamOptions.connection],
    example: "sluice mic http://localhost:8080/kitchen -D hw:CARD=Mic --buffer 10min", optionWithoutOperands: "test")

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    if values.has("test") { return try test(values) }
    let request = try StreamOptions.request(values)
    let progress = try ProgressKind(values)
    guard let container = MicrophoneSource.Container(rawValue: values["container"] ?? "wav") else {
      throw .usage("--container \((values["container"] ?? "").shown): unknown. Choose wav or raw.")
    }
    let split = try SplitOption.parse(values.all("split"))
    if split != nil, container != .wav {
      throw .usage("--split requires --container wav: only WAV files have frames. Choose that container.")
    }
    let capture = try captureConfiguration(values, measuresLevels: progress != .none || values.has("metrics"))
    // The device must accept exactly this. Mistakes in the options are reported before the device is opened.
    let bytesPerSecond = capture.rate * capture.channels * capture.format.bytesPerSample
    var configuration = try StreamOptions.configuration(
      values, request: request, bytesPerSecond: bytesPerSecond,
      buffer: .time(try SpoolOptions.memory(values) ?? .seconds(300), bytesPerSecond: bytesPerSecond),
      overflow: .dropOldest)
    if !values.has("digest") { configuration.digest = .sha256 }
    // The buffer has room for many times the bytes of a second.
    if configuration.buffer.byteCount >= 10 * bytesPerSecond { configuration.acknowledgementInterval = 1 }
    let finishTimeout = try StreamOptions.finishTimeout(values)
    let spool = try SpoolOptions(values, configuration)
    let (signals, microphone) = try open(capture)
    let source = MicrophoneSource(microphone, container: container)
    configuration.request.fields.addDefault("Content-Type", source.contentType)
    configuration.description = source.description
    configuration.description?.splitDuration = split?.duration
    configuration.description?.splitSize = split?.size
    configuration.description?.splitTimeOfDay = split?.timeOfDay
    return try StreamRun(
      url: request.url, progress: progress, levels: { microphone.levels() }, finishTimeout: finishTimeout,
      digest: StreamOptions.digest(values), metrics: values["metrics"], tokenPlace: StreamOptions.tokenPlace(values),
      signals: signals, spool: spool
    ).run(source, configuration)
  }

  /// Records and measures, and sends nothing.
  private static func test(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let progress = try ProgressKind(values)
    var capture = try captureConfiguration(values, measuresLevels: true)
    if capture.maximumFrames == nil {
      capture.maximumFrames = UInt64(Double(capture.rate) * MicTest.defaultDuration.seconds)
    }
    let microphone: Microphone
    do throws(MicrophoneError) { microphone = try Microphone(capture) } catch { throw CommandError(error) }
    let test: MicTest
    do throws(SystemError) {
      test = try MicTest(microphone, progress: progress)
    } catch {
      throw CommandError(machine: error)
    }
    return try test.run()
  }

  private static func captureConfiguration(
    _ values: CommandLineSyntax.Values, measuresLevels: Bool
  ) throws(CommandError) -> MicrophoneConfiguration {
    var configuration = MicrophoneConfiguration(device: values["device"] ?? "default", measuresLevels: measuresLevels)
    if let text = values["rate"] { configuration.rate = try Units.frameRate(text, of: "rate", in: 1000...768_000) }
    if let text = values["channels"] { configuration.channels = try Units.integer(text, of: "channels", in: 1...64) }
    if let text = values["format"] {
      guard let format = SampleFormat(rawValue: text) else {
        let names = SampleFormat.allCases.map(\.name)
        let hint = Spelling.similar(to: text.uppercased(), of: names).map { " Did you mean \($0)?" } ?? ""
        throw .usage(
          "--format \(text.shown): unknown. Choose \(names.joined(separator: ", ")).\(hint)"
        )
      }
      configuration.format = format
    }
    if let text = values["period"] {
      configuration.period = try Units.duration(text, of: "period", atLeast: .microseconds(500), atMost: .seconds(5))
    }
    if let text = values["device-buffer"] {
      configuration.buffer = try Units.duration(
        text, of: "device-buffer", atLeast: .milliseconds(1), atMost: .seconds(60))
    }
    if let buffer = configuration.buffer, values.has("period"), buffer < configuration.period * 2 {
      throw .usage(
        "--device-buffer \((values["device-buffer"] ?? "").shown) is shorter than two periods of --period \((values["period"] ?? "").shown). Choose a larger one."
      )
    }
    if let text = values["gap-fill"] {
      guard let fill = MicrophoneConfiguration.GapFill(rawValue: text) else {
        throw .usage("--gap-fill \(text.shown): unknown. Choose silence or none.")
      }
      configuration.gapFill = fill
    }
    if let text = values["duration"] {
      let seconds = try Units.duration(text, of: "duration", atLeast: .milliseconds(1)).seconds
      configuration.maximumFrames = UInt64((seconds * Double(configuration.rate)).rounded())
    }
    return configuration
  }

  /// Blocks the signals first. A sound server's plugin starts a thread here that must not receive them.
  private static func open(
    _ configuration: MicrophoneConfiguration
  ) throws(CommandError) -> (Signals, Microphone) {
    let signals: Signals
    do throws(SystemError) {
      signals = try Signals()
      try Console.shared.beginQueueing()
    } catch {
      throw CommandError(machine: error)
    }
    do throws(MicrophoneError) {
      let microphone = try signals.endProcess(during: { () throws(MicrophoneError) in try Microphone(configuration) })
      return (signals, microphone)
    } catch {
      throw CommandError(error)
    }
  }
}

extension CommandError {
  fileprivate init(_ error: MicrophoneError) {
    let code: ExitCode =
      switch error {
      case .noSuchDevice: .noDevice
      case .permissionDenied: .notPermitted
      case .unsupportedRate, .unsupportedChannels, .unsupportedFormat, .invalid: .usage
      case .busy, .system: .inputOutput
      }
    // With the name of a program that uses the device.
    self.init(code, error.description.escaped)
  }
}
