// The figures of a load test in progress, for Prometheus.

internal import EventLoops
internal import LoadReports
internal import LoadTesting
internal import Metrics

/// The figures that a run has reported so far. Any thread.
final class LoadFigures: Sendable {
  private struct Values {
    var progress: LoadProgress?
    var delays = Distribution()
    var lateness = Distribution()
  }

  private let values = Lock(Values())

  func observe(_ progress: LoadProgress) {
    values.withLock { values in
      values.progress = progress
      Self.add(progress.interval.acknowledgedDelay, to: &values.delays)
      Self.add(progress.interval.lateness, to: &values.lateness)
    }
  }

  private static func add(_ histogram: LatencyHistogram, to distribution: inout Distribution) {
    for bar in histogram.bars { distribution.record(Double(bar.lower) / 1e9, count: bar.count) }
  }

  var page: MetricsText {
    let values = values.withLock { $0 }
    let totals = values.progress?.totals ?? LoadTotals()
    let second = values.progress?.interval
    var page = MetricsText()
    page.gauge("sluice_load_live_streams", "Streams that are connected.", Double(second?.live ?? 0))
    page.gauge("sluice_load_connecting_streams", "Streams that are connecting.", Double(second?.connecting ?? 0))
    page.counter(
      "sluice_load_streams_total", "Streams by result.",
      [
        .init([.init("outcome", "started")], Double(totals.streams.started)),
        .init([.init("outcome", "finished")], Double(totals.streams.finished)),
        .init([.init("outcome", "failed")], Double(totals.streams.failed)),
      ])
    page.counter("sluice_load_offered_bytes_total", "Bytes of messages that were due.", totals.bytes.offered)
    page.counter("sluice_load_sent_bytes_total", "Bytes that were passed to the network.", totals.bytes.sent)
    page.counter(
      "sluice_load_acknowledged_bytes_total", "Bytes that the server has acknowledged.", totals.bytes.acknowledged)
    page.counter("sluice_load_lost_bytes_total", "Bytes that were lost.", totals.bytes.lost)
    page.counter("sluice_load_connections_total", "Connections that were opened.", totals.connects)
    page.counter(
      "sluice_load_interruptions_total", "Connections that ended before their stream.",
      [
        .init([.init("on_purpose", "true")], Double(totals.interruptions.onPurpose)),
        .init([.init("on_purpose", "false")], Double(totals.interruptions.unplanned)),
      ])
    page.counter(
      "sluice_load_errors_total", "Errors by class.",
      totals.errors.sorted { $0.key < $1.key }.map { .init([.init("class", $0.key)], Double($0.value.count)) })
    page.histogram(
      "sluice_load_acknowledged_delay_seconds",
      "Time from the due time of a message to its acknowledgement by the server (104, 2xx).", values.delays)
    page.histogram(
      "sluice_load_lateness_seconds", "Delay of the generator itself at each message.", values.lateness)
    return page
  }
}
