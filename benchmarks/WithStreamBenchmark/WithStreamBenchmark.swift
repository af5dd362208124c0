// What it costs to write a stream from a task (`withStream`) instead of from a thread of one's own (`LiveStreamer` with
// a `StreamSource`): throughput of both, alternately, to a server in this process that discards what it receives.
//
//     swift run -c release with-stream-benchmark [--rounds 7] [--megabytes 1024] [--piece 65536]

import EventLoops
import Glibc
import HTTPServer
import LiveStreaming
import StreamBuffers
import UploadServer

/// Writes the same piece again and again on a thread of its own, and waits while the buffer is full.
final class ThreadSource: StreamSource, @unchecked Sendable {
  private let piece: [UInt8]
  private let count: Int
  // Handed to the thread by `start`; unchecked for that reason.
  private var producer: CircularBuffer.Producer?

  init(piece: [UInt8], count: Int) { (self.piece, self.count) = (piece, count) }

  func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) throws(LiveStreamError) {
    self.producer = consume producer
    do {
      try NamedThread("source") { [self] in run() }.detach()
    } catch {
      throw LiveStreamError(.source, error.description)
    }
  }

  /// It ends by itself.
  func stop() {}

  private func run() {
    guard var producer = producer.take() else { return }
    for _ in 0..<count {
      var done = 0
      while done < piece.count {
        let rest = piece[done...]
        let result = producer.write(copying: rest.span.bytes)
        if case .written(let more) = result {
          done += more
        } else if producer.requestSpace(min(piece.count - done, producer.capacity / 4)) {
          var polled = pollfd(fd: producer.spaceDescriptor, events: Int16(POLLIN), revents: 0)
          while poll(&polled, 1, -1) < 0 && errno == EINTR {}
          producer.drainSpaceSignals()
        }
      }
    }
    producer.finish()
  }
}

@main
struct WithStreamBenchmark {
  static func main() async throws {
    func option(_ name: String, _ value: Int) -> Int {
      let arguments = CommandLine.arguments
      guard let index = arguments.firstIndex(of: name), index + 1 < arguments.count else { return value }
      return Int(arguments[index + 1]) ?? value
    }
    let (rounds, megabytes, size) = (option("--rounds", 7), option("--megabytes", 1024), option("--piece", 65_536))
    let piece = (0..<size).map { UInt8(truncatingIfNeeded: $0 &* 167) }
    let count = (megabytes << 20) / size
    let server = try UploadServer(
      configuration: UploadServer.Configuration(listen: [try ListenAddress("127.0.0.1:0")], storage: .discarding))
    try server.start()
    let session = try UploadSession()

    func configuration() -> LiveStreamConfiguration {
      var configuration = LiveStreamConfiguration(
        to: "http://\(server.localAddresses[0])/s", contentType: "application/octet-stream")
      configuration.overflow = .wait
      configuration.request.uploadBufferSize = 512 << 10
      return configuration
    }

    /// Megabytes per second.
    func rate(_ stream: () async throws -> StreamSummary) async throws -> Double {
      let start = ContinuousClock.now
      let summary = try await stream()
      precondition(summary.error == nil && summary.progress.acknowledged == UInt64(count * size), "\(summary)")
      return Double(count * size) / 1e6 / ((ContinuousClock.now - start) / .seconds(1))
    }

    var ratios: [Double] = []
    print("round  callbacks  withStream  ratio   (MB/s, pieces of \(size) bytes)")
    for round in 1...rounds {
      let callbacks = try await rate {
        await withCheckedContinuation { continuation in
          do {
            let streamer = try LiveStreamer(
              ThreadSource(piece: piece, count: count), configuration: configuration(), session: session)
            streamer.start { if case .ended(let summary) = $0 { continuation.resume(returning: summary) } }
          } catch {
            preconditionFailure("\(error)")
          }
        }
      }
      let tasks = try await rate {
        try await session.withStream(configuration: configuration()) { stream in
          for _ in 0..<count { try await stream.write(piece) }
        }
      }
      ratios.append(tasks / callbacks)
      print("\(round)      \(Int(callbacks))       \(Int(tasks))        \((tasks / callbacks * 1000).rounded() / 1000)")
    }
    let median = ratios.sorted()[ratios.count / 2]
    print("median ratio \((median * 1000).rounded() / 1000); the aim is at least 0.9")
  }
}
