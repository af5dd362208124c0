// sluice pipe URL

internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import StreamBuffers
internal import UploadClient

enum Pipe {
  static let syntax = CommandLineSyntax(
    name: "pipe", summary: "Streams standard input until it ends.", operands: ["URL"],
    options: [
      Option("content-type", value: "TYPE", "media type of the stream (default: application/octet-stream)"),
      Option("duration", short: "d", value: "T", "end after T (default: at the end of the input)"),
      StreamOptions.buffer(default: "16MiB"), StreamOptions.overflow(default: "wait"),
    ] + StreamOptions.shown,
    topics: [SpoolOptions.topic, StreamOptions.resuming, StreamOptions.connection],
    example: "journalctl -f | sluice pipe http://localhost:8080/journal.log")

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    var request = try StreamOptions.request(values)
    request.fields.addDefault("Content-Type", try StreamOptions.contentType(values))
    var configuration = try StreamOptions.configuration(
      values, request: request, bytesPerSecond: 1_000_000, buffer: .bytes(bufferSize), overflow: .wait)
    adapt(&configuration)
    let source: DescriptorSource
    do { source = try DescriptorSource() } catch {
      throw CommandError(.inputOutput, Self.remedy(for: error))
    }
    return try StreamRun(values, configuration).run(source, configuration)
  }

  static func remedy(for error: SystemError) -> String {
    switch error.code {
    case ESOCKTNOSUPPORT:
      "cannot read standard input: it is a datagram socket, and this command sends a byte stream. "
        + "Receive the datagrams with another program, for example `socat -u UDP-RECV:PORT STDOUT | sluice pipe URL`."
    case ENOTCONN: "cannot read standard input: it is a listening socket. Use an accepted connection."
    default: "cannot read standard input: \(error.reason). Pipe data into this command, or redirect a file."
    }
  }

  /// The default of `--buffer`.
  static let bufferSize = 16 << 20

  /// For bytes that arrive as fast as they are read.
  static func adapt(_ configuration: inout LiveStreamConfiguration) {
    // The most that libcurl sends at once. The number of system calls limits the throughput.
    configuration.request.uploadBufferSize = 256 << 10
    configuration.memory = .kept
    configuration.pairSize = 16 << 10
    configuration.retention = configuration.buffer.byteCount / 2
  }
}
