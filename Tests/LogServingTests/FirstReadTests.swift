// Requests that the bytes of their first read end. A connection passes bytes that came with the head to the request as
// soon as it accepts its content.

import BrokerTesting
import EventLoops
import HTTPMessages
import HTTPServer
import JetStream
import NetworkTesting
import ResumableUploads
import StreamServing
import Testing

@testable import LogServing

@Suite("Requests that end with the bytes of their first read")
struct FirstReadTests {
  /// Why the bytes end the request.
  enum Reason: CaseIterable, Sendable {
    /// The upload is complete.
    case complete
    /// There are more than can be held back for a digest.
    case unverifiable
  }

  /// A connection that has received content together with the head. Only on the loop's thread.
  private final class BegunExchange: Exchange {
    let loop: EventLoop
    let peer = "test"
    private var transfer: LogTransfer?
    private weak var former: LogTransfer?
    private let content: [UInt8]
    private let released: (Int) -> Void

    /// - Parameter released: called with the status of the response when the request is released.
    init(
      _ transfer: LogTransfer, _ loop: EventLoop, _ content: [UInt8], released: @escaping (Int) -> Void
    ) {
      (self.transfer, self.loop, self.content, self.released) = (transfer, loop, content, released)
    }

    func acceptBody() {
      let bytes = content
      transfer?.receive(bytes.span, pieces: [0..<bytes.count])
    }

    func respond(_ response: Response) {
      former = transfer
      transfer = nil
      look(response.status)
    }

    /// A timer of the request would keep it.
    private func look(_ status: Int) {
      loop.schedule(after: .milliseconds(1)) { [self] in
        if former == nil { released(status) } else { look(status) }
      }
    }

    func sendInterim(_ status: Int, _ fields: HeaderFields) {}
    func takeArrived() {}
    func pauseBody() {}
    func resumeBody() {}
    func disconnect() {}
  }

  @Test("such a request leaves neither itself nor a timer behind", arguments: Reason.allCases)
  func released(_ reason: Reason) throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try server.create("abc")
    var fields: HeaderFields = [:]
    var count = 1
    switch reason {
    case .complete:
      let client = try server.connect()
      try client.patch(location, at: 3, completes: true, body: "")
      #expect(try client.final().answer.status == 201)
    case .unverifiable:
      fields.append("content-digest", "sha-256=:\(String(repeating: "A", count: 43))=:")
      count = UploadLog.largestVerifiable + 1
    }
    let head = try RequestHead.append(to: location, at: 3, completes: true, fields)
    let content = [UInt8](repeating: 1, count: count)
    let brokers = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    let status: Int = try brokers.wait("the release of the request") { client, done in
      var options = UploadLimitsConfiguration()
      options.minimumRate = 1
      UploadLog.open(with: client, options, emit: { _ in }) { log in
        guard let log, let transfer = LogUploadHandler(log).handler(for: head) as? LogTransfer else { return done(0) }
        transfer.begin(BegunExchange(transfer, client.loop, content, released: done))
      }
    }
    #expect(status == (reason == .complete ? 409 : 413))
  }
}
