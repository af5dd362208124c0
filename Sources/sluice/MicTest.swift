// sluice mic --test: checks whether the microphone records sound, before anyone relies on it.

internal import AudioCapture
internal import EventLoops
internal import Glibc
internal import JSONLines
internal import StreamBuffers

/// One recording of a few seconds that is measured and discarded.
final class MicTest: @unchecked Sendable {
  /// The measurements.
  struct Result: Equatable {
    /// The level of each channel over the whole recording.
    var levels: [ChannelLevel]
    var frames: UInt64
    var framesLost: UInt64

    /// Whether every sample of the channel was 0. No microphone is that quiet.
    static func isDigitalSilence(_ level: ChannelLevel) -> Bool { !level.peak.isFinite }
  }

  static let defaultDuration = Duration.seconds(3)
  private static let interval = Duration.milliseconds(250)

  // Owned by the thread that calls `run`, and unchecked for that reason.
  private let microphone: Microphone
  private let progress: ProgressKind
  private let loop: EventLoop
  private let start = MonotonicInstant.now
  private var peaks: [Double]
  private var energies: [Double]
  private var readings = 0.0
  private var failure: CommandError?

  init(_ microphone: Microphone, progress: ProgressKind) throws(SystemError) {
    self.microphone = microphone
    self.progress = progress
    loop = try EventLoop()
    peaks = Array(repeating: -.infinity, count: microphone.format.channels)
    energies = Array(repeating: 0, count: microphone.format.channels)
  }

  /// Records until the microphone has delivered all frames of its configuration.
  ///
  /// - Throws: ``CommandError`` when the device refuses, disappears or fails.
  func run() throws(CommandError) -> ExitCode {
    do {
      let buffer = try CircularBuffer.make(
        capacity: .time(.seconds(1), bytesPerSecond: microphone.format.bytesPerSecond), overflow: .dropOldest)
      try loop.register(microphone.eventDescriptor, .readable) { [unowned self] _ in takeEvents() }
      try microphone.start(into: buffer.producer)
    } catch {
      throw CommandError(machine: error)
    }
    tick()
    loop.run()
    microphone.stop()
    microphone.waitUntilEnded()
    Console.shared.show(status: "")
    if let failure { throw failure }
    let result = Result(
      levels: zip(peaks, energies).map { peak, energy in
        ChannelLevel(peak: peak, rms: readings > 0 && energy > 0 ? 10 * log10(energy / readings) : -.infinity)
      },
      frames: microphone.totals.frames, framesLost: microphone.totals.framesLost)
    show(result)
    if result.levels.allSatisfy(Result.isDigitalSilence) { return .inputOutput }
    return result.framesLost > 0 ? .dataLost : .done
  }

  private func tick() {
    measure()
    loop.schedule(after: Self.interval) { [unowned self] in tick() }
  }

  private func measure() {
    let levels = microphone.levels()
    // There is no level before the first period and after the last.
    guard levels.contains(where: { $0.rms.isFinite || $0.peak.isFinite }) else { return }
    readings += 1
    for (channel, level) in levels.enumerated() {
      peaks[channel] = max(peaks[channel], level.peak)
      energies[channel] += pow(10, level.rms / 10)
    }
    guard progress == .bar else { return }
    let elapsed = Units.clock(MonotonicInstant.now - start)
    Console.shared.show(status: String("\(elapsed)  \(StatusLine.meter(levels))".prefix(max(0, Console.width - 1))))
  }

  private func takeEvents() {
    while let event = microphone.nextEvent() {
      switch event {
      case .deviceLost(_, let code):
        // A stream would wait for the device. In a test, a person is beside it.
        failure = CommandError(
          .noDevice,
          "\(microphone.configuration.device.shown) was disconnected: \(SystemError(operation: "", code: code).reason). Check the cable."
        )
        loop.stop()
      case .failed(let operation, let code):
        failure = CommandError(
          .inputOutput, "the microphone failed: \(SystemError(operation: "\(operation)", code: code))")
        loop.stop()
      case .stopped:
        measure()
        loop.stop()
      case .started, .overrun, .suspended, .deviceRefused, .deviceReturned, .neverReturned, .missed, .bufferFull: break
      }
    }
  }

  // MARK: Reports

  private func show(_ result: Result) {
    let format = microphone.format
    guard progress == .json else {
      for line in Self.lines(
        result, device: microphone.configuration.device, seconds: format.duration(of: result.frames))
      {
        Console.shared.say(line)
      }
      return
    }
    var line = JSONLine(event: "test")
    line.add("device", microphone.configuration.device)
    line.add("rate", format.rate)
    line.add("channels", format.channels)
    line.add("format", format.format.name)
    line.add("frames", result.frames)
    line.add("lost_frames", result.framesLost)
    line.add("peak_db", thousandths: result.levels.map(\.peak))
    line.add("rms_db", thousandths: result.levels.map(\.rms))
    line.add("silent", result.levels.allSatisfy(Result.isDigitalSilence))
    line.add("time", WallClock.now.iso8601)
    Console.shared.put(line.line)
  }

  /// The result as human-readable text, with advice.
  static func lines(_ result: Result, device: String, seconds: Duration) -> [String] {
    func decibels(_ value: Double) -> String { value.isFinite ? "\(Units.fixed(value, decimals: 1)) dBFS" : "silence" }
    var lines = ["recorded \(Units.text(seconds)) from \(device.shown)"]
    for (number, level) in result.levels.enumerated() {
      lines.append("  channel \(number + 1): peak \(decibels(level.peak)), mean \(decibels(level.rms))")
    }
    if result.framesLost > 0 {
      lines.append("The device lost \(result.framesLost) frames. Choose a longer --device-buffer.")
    }
    let silent = result.levels.indices.filter { Result.isDigitalSilence(result.levels[$0]) }.map { "\($0 + 1)" }
    let peak = result.levels.map(\.peak).max() ?? -.infinity
    let mean = result.levels.map(\.rms).max() ?? -.infinity
    if silent.count == result.levels.count {
      lines.append(
        "Every sample is 0. Check that the microphone is not muted (alsamixer) and that the device is the right one (sluice devices)."
      )
    } else {
      if !silent.isEmpty { lines.append("Every sample of channel \(silent.joined(separator: ", ")) is 0.") }
      if peak >= -0.1 {
        lines.append("The recording is clipped. Lower the gain (alsamixer).")
      } else if mean < -60 {
        lines.append("The recording is very quiet. Raise the gain (alsamixer), or speak.")
      } else {
        lines.append("The microphone works.")
      }
    }
    return lines
  }
}
