// A microphone as the source of a stream.

public import AudioCapture
internal import EventLoops
public import LiveStreaming
public import StreamBuffers

/// Streams the samples of a ``AudioCapture/Microphone``, optionally with a WAV header.
///
/// Samples go from the capture thread directly into the circular buffer. The stream's loop reads the events of the
/// microphone.
public final class MicrophoneSource: StreamSource, @unchecked Sendable {
  /// The file format of the stream.
  public enum Container: String, CaseIterable, Sendable {
    /// A WAV header without sizes, followed by samples.
    case wav
    /// Samples only.
    case raw
  }

  /// The microphone that the stream captures.
  public let microphone: Microphone
  private let container: Container
  // Owned by the loop's thread, and unchecked for that reason.
  private var context: SourceContext?
  private var isStopped = false

  /// Creates a source that captures from a microphone.
  ///
  /// - Parameters:
  ///   - microphone: a microphone that is not started.
  ///   - container: the file format of the stream.
  public init(_ microphone: Microphone, container: Container = .wav) {
    self.microphone = microphone
    self.container = container
  }

  /// The media type of the stream.
  public var contentType: String {
    let format = microphone.format
    return switch container {
    case .wav: "audio/wav"
    case .raw: "audio/x-raw;format=\(format.format.name);rate=\(format.rate);channels=\(format.channels)"
    }
  }

  /// The device and its format, for ``LiveStreaming/LiveStreamConfiguration/description``.
  public var description: SourceDescription {
    let format = microphone.format
    return SourceDescription(
      device: microphone.configuration.device, format: format.format.name, rate: format.rate,
      channels: format.channels)
  }

  /// The WAV header, or no bytes.
  public var header: [UInt8] {
    guard container == .wav else { return [] }
    let format = microphone.format
    return WAVHeader(rate: format.rate, channels: format.channels, format: format.format).bytes
  }

  /// The number of bytes of one sample of each channel.
  public var frameLength: Int { microphone.format.bytesPerFrame }

  /// The number of bytes of one second of samples.
  public var bytesPerSecond: Int? { microphone.format.bytesPerSecond }

  /// Writes the header and starts the microphone.
  public func start(
    into producer: consuming CircularBuffer.Producer, context: SourceContext
  ) throws(LiveStreamError) {
    self.context = context
    let header = header
    if !header.isEmpty {
      guard case .written(header.count) = producer.write(copying: header.span.bytes) else {
        throw LiveStreamError(
          .source, "the buffer is too small for a WAV header. Choose a larger buffer", remedy: .largerBuffer)
      }
    }
    do {
      let descriptor = microphone.eventDescriptor
      try context.loop.register(descriptor, .readable) { [weak self, weak loop = context.loop] _ in
        // The stream has ended, and its user still has the microphone.
        if let self { takeEvents() } else { loop?.deregister(descriptor) }
      }
      try microphone.start(into: producer)
    } catch {
      throw LiveStreamError(.source, "\(error)")
    }
  }

  /// Stops the microphone. The captured samples are still streamed.
  public func stop() {
    isStopped = true
    microphone.stop()
    // Its current events belong to the stream that ends.
    takeEvents()
  }

  /// Reads the events of the microphone, because its thread finishes the stream without the loop.
  public func reportFailure() { takeEvents() }

  private func takeEvents() {
    guard let context else { return }
    while let event = microphone.nextEvent() {
      if let told = Self.describe(event, microphone.format) { context.report(told) }
      switch event {
      // The microphone itself reports the frames for which there is still no room after the order to stop.
      case .bufferFull where context.overflow == .stop && !isStopped:
        context.fail(
          LiveStreamError(
            .overflow, "the buffer is full. Choose a larger buffer or another overflow policy", remedy: .largerBuffer))
        microphone.stop()
      case .failed(let operation, let code):
        context.fail(
          LiveStreamError(.source, "the microphone failed: \(SystemError(operation: "\(operation)", code: code))"))
      case .stopped:
        context.loop.deregister(microphone.eventDescriptor)
        self.context = nil
      default:
        break
      }
    }
  }

  static func describe(_ event: CaptureEvent, _ format: CaptureFormat) -> SourceEvent? {
    let summary = summary(format)
    func lost(_ kind: String, _ words: String, _ offset: UInt64, _ frames: UInt64, _ filled: Bool) -> SourceEvent {
      let time = format.duration(of: frames)
      let fill = filled ? ", replaced with silence" : ""
      return SourceEvent(
        kind: kind, description: "\(words): \(frames) frames lost (\(time.nanoseconds / 1_000_000) ms)\(fill)",
        offset: offset,
        lost: frames, filled: filled ? frames.multipliedSaturated(by: UInt64(format.bytesPerFrame)) : 0)
    }
    switch event {
    case .started(.granted(let priority)):
      return SourceEvent(
        kind: "capture", description: "capturing \(summary), real-time priority \(priority)", offset: 0,
        isTrouble: false)
    case .started(.refused):
      return SourceEvent(
        kind: "capture",
        description: "capturing \(summary), without real-time priority (allow it with LimitRTPRIO= or limits.conf)",
        offset: 0, isTrouble: false)
    case .started(.notRequested):
      return SourceEvent(kind: "capture", description: "capturing \(summary)", offset: 0, isTrouble: false)
    case .overrun(let offset, let frames, let filled):
      return lost("overrun", "the device overran", offset, frames, filled)
    case .suspended(let offset, let frames, let filled):
      return lost("suspend", "the device was suspended", offset, frames, filled)
    case .deviceLost(let offset, let code):
      let reason = SystemError(operation: "", code: code).reason
      return SourceEvent(
        kind: "device-lost", description: "the device was disconnected (\(reason)). Waiting for it to return",
        offset: offset)
    case .deviceRefused(let offset, let reason):
      return SourceEvent(
        kind: "device-refused", description: "the device cannot be used again: \(words(reason, format))",
        offset: offset)
    case .deviceReturned(let offset, let frames, let filled, _):
      return lost("device-returned", "the device is back", offset, frames, filled)
    case .neverReturned(let offset, let frames, let filled):
      return lost("device-never-returned", "the device did not come back", offset, frames, filled)
    case .missed(let events, let offset, let byteCount, let frames, let filled):
      var told = lost("events-missed", "\(events) more events were too frequent to be reported", offset, frames, filled)
      told.length = byteCount
      return told
    case .bufferFull(let offset):
      return SourceEvent(
        kind: "full", description: "the buffer is full. The device keeps as many frames as it can", offset: offset)
    case .stopped, .failed:
      return nil
    }
  }

  /// The reason, and the next step.
  private static func words(_ reason: CaptureEvent.Refusal, _ format: CaptureFormat) -> String {
    let otherwise = "Connect the earlier device, or start another capture"
    return switch reason {
    case .busy: "another program uses it. End that program"
    case .permissionDenied: "permission denied. Permit the user to open it"
    case .rate(let nearest):
      "it does not support \(format.rate) Hz, and the nearest rate is \(nearest) Hz. \(otherwise) with that rate"
    case .channels(let nearest):
      "it does not support \(format.channels) channel\(format.channels == 1 ? "" : "s"), "
        + "and the nearest number is \(nearest). \(otherwise) with that number"
    case .format(let nearest?):
      "it does not support \(format.format.name), and the nearest format is \(nearest.name). "
        + "\(otherwise) with that format"
    case .format(nil): "it does not support \(format.format.name). \(otherwise)"
    case .system(let code): "\(SystemError(operation: "", code: code).reason). Waiting until it can be used"
    }
  }

  /// `48000 Hz, 1 channel, S16_LE, periods of 10 ms` .
  private static func summary(_ format: CaptureFormat) -> String {
    "\(format.rate) Hz, \(format.channels) channel\(format.channels == 1 ? "" : "s"), \(format.format.name), "
      + "periods of \(format.period.nanoseconds / 1_000_000) ms in a buffer of \(format.buffer.nanoseconds / 1_000_000) ms"
  }
}
