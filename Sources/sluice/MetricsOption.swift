// --metrics ADDR:PORT: figures of the subcommand for Prometheus.

internal import AudioCapture
internal import EventLoops
internal import HTTPServer
internal import LiveStreaming
internal import Metrics

enum MetricsOption {
  /// Binds the address of the option. Nil without the option. No thread is created and no request is answered before
  /// the start.
  static func listener(
    _ value: String?, isReady: @escaping @Sendable () -> Bool = { true },
    _ makePage: @escaping MetricsListener.PageMaker
  ) throws(CommandError) -> MetricsListener? {
    guard let text = value else { return nil }
    do throws(ListenError) {
      return try MetricsListener(
        listen: try ListenAddress(text), isReady: isReady,
        failed: { Console.shared.say("the metrics are not available yet: \($0). Another attempt follows.") }
      ) { answer in
        makePage { page in
          var page = page
          page.counter(
            "sluice_output_lines_dropped_total",
            "Lines of output that were dropped because no program read them or they could not be written.",
            Console.shared.droppedCount)
          answer(page)
        }
      }
    } catch {
      throw CommandError(ExitCode(error), "--metrics: \(error.message(option: "--metrics"))")
    }
  }
}

extension MetricsListener {
  /// Begins to answer requests, and prints the address.
  func begin() throws(SystemError) {
    try start()
    for address in localAddresses { Console.shared.say("serving metrics at http://\(address)/metrics") }
  }
}

/// The figures of one stream, computed from its events. Any thread.
final class StreamRunFigures: Sendable {
  private struct Values {
    var progress: StreamProgress?
    var gaps = 0
    var sourceEvents = 0
    var lostFrames: UInt64 = 0
    var levels: [ChannelLevel] = []
    /// The time of the server's last acknowledgement. Initially the start of the stream.
    var acknowledgedAt = MonotonicInstant.now
  }

  private let values = Lock(Values())

  /// - Parameter levels: the levels since the last progress event. Empty for every other event and without a
  ///   microphone.
  func observe(_ event: LiveStreamEvent, _ levels: [ChannelLevel]) {
    values.withLock { values in
      switch event {
      case .progress(let progress):
        if progress.acknowledged > values.progress?.acknowledged ?? 0 { values.acknowledgedAt = .now }
        values.progress = progress
        values.levels = levels
      case .ended(let summary): values.progress = summary.progress
      case .acknowledged: values.acknowledgedAt = .now
      case .gap, .missingAtServer: values.gaps += 1
      case .source(let event):
        if event.isTrouble { values.sourceEvents += 1 }
        if event.unit == .frames { values.lostFrames = values.lostFrames.addingSaturated(event.lost) }
      default: break
      }
    }
  }

  var page: MetricsText {
    let values = values.withLock { $0 }
    let progress = values.progress
    var page = MetricsText()
    page.counter("sluice_stream_captured_bytes_total", "Bytes that the source has produced.", progress?.captured ?? 0)
    page.counter(
      "sluice_stream_sent_bytes_total", "Bytes that were passed to the network, and lost bytes before them.",
      progress?.sent ?? 0)
    page.counter(
      "sluice_stream_acknowledged_bytes_total", "Bytes that the server has acknowledged.", progress?.acknowledged ?? 0)
    page.counter("sluice_stream_lost_bytes_total", "Bytes that will not reach the server.", progress?.lost ?? 0)
    page.counter(
      "sluice_stream_outages_total", "Number of outages. An outage with several attempts counts once.",
      UInt64(progress?.outageCount ?? 0))
    page.counter("sluice_stream_gaps_total", "Number of gaps, each with lost bytes.", UInt64(values.gaps))
    page.counter(
      "sluice_stream_source_events_total", "Problems of the source, such as overruns.", UInt64(values.sourceEvents))
    page.gauge("sluice_stream_buffered_bytes", "Bytes in the circular buffer.", Double(progress?.buffered ?? 0))
    page.gauge(
      "sluice_stream_buffer_capacity_bytes", "Capacity of the circular buffer.", Double(progress?.capacity ?? 0))
    page.gauge("sluice_stream_connected", "Whether a request is in progress.", progress?.isConnected == true ? 1 : 0)
    page.gauge("sluice_stream_elapsed_seconds", "Time since the stream began.", progress?.elapsed.seconds ?? 0)
    page.gauge(
      "sluice_stream_seconds_since_acknowledgement",
      "Time since the server's last acknowledgement, or since the stream began.",
      (MonotonicInstant.now - values.acknowledgedAt).seconds)
    page.counter(
      "sluice_stream_lost_frames_total", "Frames that the device lost before they reached the buffer.",
      values.lostFrames)
    if let left = progress?.bufferTimeLeft {
      page.gauge(
        "sluice_stream_buffer_seconds_left", "Remaining time that an outage may last without a loss.", left.seconds)
    }
    if !values.levels.isEmpty {
      func samples(_ value: (ChannelLevel) -> Double) -> [MetricsText.Sample] {
        values.levels.enumerated().map { .init([.init("channel", "\($0 + 1)")], value($1)) }
      }
      page.gauge("sluice_microphone_peak_dbfs", "Peak level over the last second.", samples(\.peak))
      page.gauge("sluice_microphone_rms_dbfs", "Mean level (RMS) over the last second.", samples(\.rms))
    }
    return page
  }
}
