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
  /// When the test acts.
  private enum Moment {
    /// The messages of the upload are being read.
    case reading
    /// The response waits for the brokers.
    case finishing

    func isNow(_ transfer: LogTransfer) -> Bool {
      switch self {
      case .reading: transfer.verification == .reading
      case .finishing: transfer.isFinishing
      }
    }
  }

  /// The last request of an upload, on the loop of a broker's client. The test acts between two answers of the broker.
  /// Unchecked, because only the loop's thread uses it.
  private final class LastRequest: Exchange, @unchecked Sendable {
    let loop: EventLoop
    let peer = "test"
    private let transfer: LogTransfer
    private let moment: Moment
    private let act: (LogTransfer) -> Void
    private let answered: (Int) -> Void

    init(
      _ transfer: LogTransfer, _ loop: EventLoop, _ moment: Moment, _ act: @escaping (LogTransfer) -> Void,
      answered: @escaping (Int) -> Void
    ) {
      (self.transfer, self.loop) = (transfer, loop)
      (self.moment, self.act, self.answered) = (moment, act, answered)
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

    /// Looks once per turn. A step that asks the broker takes more turns.
    private func look() {
      if moment.isNow(transfer) { return act(transfer) }
      if !transfer.isOver { loop.execute { [self] in look() } }
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
    let events: EventLog<ServerEvent>
  }

  private static func upload(_ server: LogServer, announcing text: String) throws -> String {
    let digest = Digest(.sha256, of: Array(text.utf8).span.bytes).base64
    let location = try server.create("one ", ["Repr-Digest: sha-256=:\(digest):"])
    let client = try server.connect()
    try client.patch(location, at: 4, body: "two ")
    guard try client.final().answer.status == 204 else { throw TestFailure("no append") }
    return location
  }

  /// Completes the upload with "three". `act` is called once, at a moment of the request.
  private static func complete(
    _ location: String, _ broker: TestBroker, at moment: Moment = .reading,
    _ act: @escaping @Sendable (LogTransfer) -> Void
  ) throws -> Outcome {
    let outcome = try Outcome(
      brokers: BrokerLoop(BrokerOptions(servers: [broker.url])), statuses: EventLog(), events: EventLog())
    let (statuses, events) = (outcome.statuses, outcome.events)
    let head = try RequestHead.append(to: location, at: 8, completes: true)
    let begins: Bool = try outcome.brokers.wait("the request") { client, done in
      UploadLog.open(with: client, UploadLimitsConfiguration(), emit: { events.append($0) }) { log in
        guard let log, let transfer = LogUploadHandler(log).handler(for: head) as? LogTransfer else {
          return done(false)
        }
        transfer.begin(LastRequest(transfer, client.loop, moment, act) { statuses.append($0) })
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

  @Test("a refuted upload whose client leaves while its bytes are removed is reported once")
  func leftDuringRemoval() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try Self.upload(server, announcing: "one two four")
    let outcome = try Self.complete(location, broker, at: .finishing) { $0.aborted(.peerClosed) }
    defer { withExtendedLifetime(outcome) {} }
    let refusal = try outcome.events.first("the refusal") { $0.status == 400 }
    // The broker answers in order, so another removal of the bytes would be over by now.
    let messages = try outcome.brokers.open("sluice").messages(of: String(location.dropFirst("/.uploads/".count)))
    #expect(messages.map(\.content.payload) == [[]])
    let events = outcome.events.all.filter { $0.kind != .continued }
    #expect(events.map(\.kind) == [refusal.kind], "\(events)")
    #expect(outcome.statuses.all.isEmpty)
  }
}
