// The reading of an upload for its digest, which takes long for a long upload: nobody ends the upload meanwhile.

import BrokerTesting
import Digests
import EventLoops
import HTTPMessages
import HTTPServer
import JetStream
import NetworkTesting
import ResumableUploads
import StreamServing
import Testing

@testable import LogServing

@Suite("The reading of an upload for its digest")
struct LongVerificationTests {
  /// The last request of an upload, on the loop of a broker's client. The test acts between two messages that are read.
  /// Unchecked, because only the loop's thread uses it.
  private final class LastRequest: Exchange, @unchecked Sendable {
    let loop: EventLoop
    let peer = "test"
    private let transfer: LogTransfer
    private let act: (LogTransfer) -> Void
    private let answered: (Int) -> Void

    init(
      _ transfer: LogTransfer, _ loop: EventLoop, _ act: @escaping (LogTransfer) -> Void,
      answered: @escaping (Int) -> Void
    ) {
      (self.transfer, self.loop) = (transfer, loop)
      (self.act, self.answered) = (act, answered)
    }

    // The handler is within a step.
    func acceptBody() { loop.execute { [self] in sendContent() } }

    private func sendContent() {
      // The first piece is published at once, so the second one waits.
      for text in ["thr", "ee"] {
        let bytes = Array(text.utf8)
        transfer.receive(bytes.span, pieces: [0..<bytes.count])
      }
      transfer.end()
      look()
    }

    /// Looks once per turn. The reading takes more turns, because it asks the broker for one message after another.
    private func look() {
      switch transfer.verification {
      case .due: loop.execute { [self] in look() }
      case .reading: act(transfer)
      case .counting, .done: break
      }
    }

    func respond(_ response: Response) { answered(response.status) }
    func sendInterim(_ status: Int, _ fields: HeaderFields) {}
    func takeArrived() {}
    func pauseBody() {}
    func resumeBody() {}
    func disconnect() { answered(0) }
  }

  /// The loop of a request, and what comes of it.
  private struct Outcome {
    let brokers: BrokerLoop
    let statuses: EventLog<Int>
  }

  private static func upload(_ server: LogServer, announcing text: String) throws -> String {
    let digest = Digest(.sha256, of: Array(text.utf8).span.bytes).base64
    let location = try server.create("one ", ["Repr-Digest: sha-256=:\(digest):"])
    let client = try server.connect()
    try client.patch(location, at: 4, body: "two ")
    guard try client.final().answer.status == 204 else { throw TestFailure("no append") }
    return location
  }

  /// Completes the upload with "three". `act` is called when the reading has begun.
  private static func complete(
    _ location: String, _ broker: TestBroker, _ act: @escaping @Sendable (LogTransfer) -> Void
  ) throws -> Outcome {
    let outcome = try Outcome(
      brokers: BrokerLoop(BrokerOptions(servers: [broker.url])), statuses: EventLog())
    let (statuses, path) = (outcome.statuses, Array(location.utf8))
    let head = RequestHead(
      method: "PATCH", target: try RequestTarget(path.span, method: "PATCH"), minorVersion: 1,
      fields: [
        "content-type": "application/partial-upload", "upload-offset": "8", "upload-complete": "?1",
        "upload-draft-interop-version": "8",
      ], framing: .chunked, expectsContinue: false, keepsAlive: true)
    let begins: Bool = try outcome.brokers.wait("the request") { client, done in
      MessageStream.open("sluice", replicas: 1, with: client) { found in
        guard case .success(let stream) = found else { return done(false) }
        let options = UploadLimitsConfiguration()
        let context = ServingContext(
          loop: client.loop, assignment: .only, figures: ServerLoopFigures(), finishAfter: .seconds(3600),
          isValid: { _ in true }, emit: { _ in })
        let log = UploadLog(
          context, stream: stream, options: options, usage: LogUsage(options, finishAfter: .seconds(3600)),
          maximumBodyLength: nil, maximumHole: 0)
        guard let transfer = LogUploadHandler(log).handler(for: head) as? LogTransfer else { return done(false) }
        transfer.begin(LastRequest(transfer, client.loop, act) { statuses.append($0) })
        done(true)
      }
    }
    guard begins else { throw TestFailure("the request is not an append") }
    return outcome
  }

  /// The contents of the messages. Each must refer to the one before it.
  private static func texts(_ broker: TestBroker, _ location: String) throws -> [String] {
    var last = LogEntry.Link()
    let messages = try broker.messages(of: location)
    for message in messages {
      let entry = try #require(LogEntry(message.content))
      #expect(entry.link == last.next(message.content))
      last = entry.link
    }
    return messages.map { String(decoding: $0.content.payload, as: UTF8.self) }
  }

  @Test(
    "a request shows other servers that it is active while its upload is read, and is then answered as usual",
    arguments: [true, false])
  func activity(_ isRight: Bool) throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try Self.upload(server, announcing: isRight ? "one two three" : "one two four")
    let outcome = try Self.complete(location, broker) { $0.showActivity() }
    defer { withExtendedLifetime(outcome) {} }
    let status = try outcome.statuses.first("the response") { _ in true }
    #expect(status == (isRight ? 201 : 400))
    if isRight {
      #expect(try Self.texts(broker, location) == ["", "one ", "two ", "thr", "", "ee"])
      #expect(try broker.messages(of: location).compactMap { $0.content["Upload-Complete"] } == ["?1"])
    }
    #expect(try server.head(location).status == (isRight ? 204 : 410))
  }

  @Test("a message of another server that would end an upload as expired is refused after such a sign of activity")
  func expiry() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try Self.upload(server, announcing: "one two three")
    let token = String(location.dropFirst("/.uploads/".count))
    let tries = try EventLog<Bool>()
    let outcome = try Self.complete(location, broker) { transfer in
      let (log, link, sequence) = (transfer.log, transfer.link, transfer.append.sequence)
      transfer.showActivity()
      // The broker receives it after the other one.
      var ended = LogEntry(
        offset: 11, count: 0, streamID: transfer.streamID, streamStart: 0, owner: nil,
        mark: .init(publisher: "another-x1", number: 1))
      ended.deactivation = .expired
      let message = ended.message([], behind: link)
      log.publish(message, to: token, after: sequence) { result in
        if case .success = result { tries.append(true) } else { tries.append(false) }
      }
    }
    defer { withExtendedLifetime(outcome) {} }
    let isEnded = try tries.first("the answer") { _ in true }
    let status = try outcome.statuses.first("the response") { _ in true }
    #expect(!isEnded && status == 201)
    #expect(try Self.texts(broker, location) == ["", "one ", "two ", "thr", "", "ee"])
  }
}
