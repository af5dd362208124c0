// A server whose handler computes the digest of a body. Its twenty lines contain nothing about resumable uploads, and
// still its clients may lose their connections any number of times.
//
//     swift run sample-resumable-handler &
//     curl -T film.mp4 -H "Upload-Complete: ?1" -H "Upload-Draft-Interop-Version: 8" http://localhost:8080/checksum

import Digests
import UploadServer

/// The server begins the handler once, delivers the body in order, and ends it once, over any number of connections.
final class ChecksumHandler: RequestHandler {
  private var digest = RunningDigest(.sha256)
  private var exchange: (any Exchange)?

  func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    exchange.acceptBody()
  }
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
    for piece in pieces { digest.update(bytes.extracting(piece).bytes) }
  }
  func end() {
    exchange?.respond(Response(200, body: "\(digest.value().hexadecimal)  \(digest.byteCount) bytes\n"))
  }
  func aborted(_ reason: AbortReason) { print("given up: \(reason)") }
  func serverStops() {}
}

@main
struct ResumableHandler {
  static func main() async throws {
    let address = try ListenAddress(CommandLine.arguments.dropFirst().first ?? "127.0.0.1:8080")
    var configuration = UploadServer.Configuration(listen: [address], directory: "uploads") { print($0.jsonLine) }
    configuration.handler = { head in head.target.path == "/checksum" ? ChecksumHandler() : nil }
    try await UploadServer(configuration: configuration).run()
  }
}
