// sluice heartbeat URL

internal import EventLoops
internal import LiveStreaming
internal import StreamBuffers
internal import UploadClient

enum Heartbeat {
  static let syntax = CommandLineSyntax(
    name: "heartbeat", summary: "Streams a line with the current time at a fixed interval.", operands: ["URL"],
    options: [
      Option("interval", value: "T", "time between two lines (default: 1s)"),
      Option("time-format", value: "F", "strftime(3) format of a line, in UTC (default: '*** %F %T %z')"),
      Option("duration", short: "d", value: "T", "end after T (default: at a signal)"),
      StreamOptions.buffer(default: "1MiB"), StreamOptions.overflow(default: "drop-oldest"),
    ] + StreamOptions.shown,
    topics: [SpoolOptions.topic, StreamOptions.resuming, StreamOptions.connection],
    example: "sluice heartbeat http://localhost:8080/pulse --interval 10s")

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let interval = try Units.duration(values["interval"] ?? "1s", of: "interval", atLeast: .milliseconds(1))
    var request = try StreamOptions.request(values)
    request.fields.addDefault("Content-Type", "text/plain; charset=utf-8")
    let format = values["time-format"] ?? HeartbeatSource.defaultFormat
    let source = HeartbeatSource(interval: interval, format: format)
    guard let lineLength = HeartbeatSource.lineByteCount(format: format) else {
      throw .usage(
        "--time-format \(format.shown): invalid format: it produces no text, or more than \(HeartbeatSource.lineLimit) bytes. Choose another one."
      )
    }
    let configuration = try StreamOptions.configuration(
      values, request: request, bytesPerSecond: Int((Double(lineLength) / interval.seconds).rounded(.up)),
      buffer: .bytes(1 << 20), overflow: .dropOldest)
    return try StreamRun(values, configuration).run(source, configuration)
  }
}
