// Drives a client's state machine in a test: takes the server's answers, and returns the client's next request.

import HTTPMessages
import Testing

@testable import ResumableUploads

/// A client, the available bytes of its stream, and the progress of the request under way.
struct ClientScript {
  static let upload = "http://host/uploads/1"
  static let other = "http://host/uploads/2"

  var machine: UploadClientStateMachine
  var supply: Supply
  /// The stream offset up to which bytes of the request under way were handed over.
  var sentUpTo: UInt64 = 0
  private(set) var last = UploadClientStateMachine.Action.none

  init(
    _ supply: Supply = Supply(oldest: 0, head: 0, isFinished: false),
    _ change: (inout UploadClientStateMachine.Configuration) -> Void = { _ in }
  ) {
    var configuration = UploadClientStateMachine.Configuration()
    configuration.discovers = false
    change(&configuration)
    machine = UploadClientStateMachine(configuration)
    self.supply = supply
  }

  /// A stream that continues and has this many bytes so far, all of them available.
  static func live(
    _ head: UInt64, isFinished: Bool = false,
    _ change: (inout UploadClientStateMachine.Configuration) -> Void = { _ in }
  ) -> ClientScript {
    ClientScript(Supply(oldest: 0, head: head, isFinished: isFinished), change)
  }

  /// A file of this size, sent with the creation.
  static func file(
    _ length: UInt64, _ change: (inout UploadClientStateMachine.Configuration) -> Void = { _ in }
  ) -> ClientScript {
    live(length, isFinished: true) { configuration in
      configuration.isOptimistic = true
      configuration.length = length
      change(&configuration)
    }
  }

  /// A live stream whose upload resource exists. Its next request is an append or waits for bytes.
  static func created(
    _ head: UInt64, isFinished: Bool = false, limits: String? = nil,
    _ change: (inout UploadClientStateMachine.Configuration) -> Void = { _ in }
  ) -> ClientScript {
    var client = live(head, isFinished: isFinished, change)
    client.start()
    client.answer(201, limits.map { ["Upload-Limit": $0] } ?? [:], location: upload)
    return client
  }

  // MARK: Events

  @discardableResult
  mutating func perform(_ action: UploadClientStateMachine.Action) -> UploadClientStateMachine.Action {
    last = action
    switch request?.content {
    case .bytes(let start, _): sentUpTo = start
    case .empty:
      if case .appending(let append) = machine.state { sentUpTo = append.start } else { sentUpTo = machine.base }
    case .absent, nil: sentUpTo = machine.base
    }
    return action
  }

  @discardableResult
  mutating func start() -> UploadClientStateMachine.Action { perform(machine.start(supply)) }

  /// Hands over all bytes that the request under way may carry.
  mutating func sendAll() { send(upTo: supply.head) }

  mutating func send(upTo end: UInt64) {
    guard case .bytes(let start, let maximum)? = request?.content else { return }
    sentUpTo = min(end, start + (maximum ?? .max - start))
  }

  /// A final response. A 2xx to an append names the interop version, unless it is `silent`.
  @discardableResult
  mutating func answer(
    _ status: Int, _ fields: HeaderFields = [:], location: String? = nil, isEarly: Bool = false, silent: Bool = false
  ) -> UploadClientStateMachine.Action {
    var fields = fields
    if case .appending = machine.state, (200..<300).contains(status), !silent { machine.version.setVersion(&fields) }
    return perform(
      machine.answered(
        ClientAnswer(status: status, fields: fields, location: location, isEarly: isEarly), sentUpTo: sentUpTo, supply))
  }

  /// A 104 of the client's own version.
  @discardableResult
  mutating func interim(_ fields: HeaderFields = [:], location: String? = nil, status: Int = 104) -> ClientFailure? {
    var fields = fields
    machine.version.setVersion(&fields)
    return machine.received(
      interim: ClientAnswer(status: status, fields: fields, location: location), sentUpTo: sentUpTo)
  }

  /// Answers each request with this status, after each pause, until the client does something else than repeat it.
  mutating func insist(_ status: Int, atMost count: Int = 10) {
    for _ in 0..<count {
      guard answer(status) == .wait else { return }
      goOn()
    }
  }

  /// The connection is lost, and the client continues after the delay.
  @discardableResult
  mutating func lose() -> UploadClientStateMachine.Action {
    let action = machine.interrupted(sentUpTo: sentUpTo)
    return action == .wait ? goOn() : perform(action)
  }

  /// Lets a pause end. A request or the end of the upload must follow because no timer would end a second pause.
  @discardableResult
  mutating func goOn() -> UploadClientStateMachine.Action {
    let action = perform(machine.goOn(supply))
    #expect(action != .wait && action != .none, "a pause is followed by \(action)")
    return action
  }

  /// The stream has grown.
  @discardableResult
  mutating func grow(to head: UInt64, isFinished: Bool = false) -> UploadClientStateMachine.Action {
    supply = Supply(oldest: supply.oldest, head: head, isFinished: isFinished)
    return machine.state == .ready ? perform(machine.bytesAreReady(supply)) : last
  }

  /// Releases the bytes before that offset.
  mutating func release(upTo oldest: UInt64, restart: UInt64? = nil) {
    supply = Supply(oldest: oldest, head: supply.head, isFinished: supply.isFinished, restart: restart)
  }

  // MARK: What came of it

  var request: ClientRequest? { if case .send(let request) = last { request } else { nil } }
  var fields: HeaderFields { request?.fields ?? [:] }
  var failure: ClientFailure? { if case .fail(let failure) = last { failure } else { nil } }
  /// The method and the offset, as `PATCH 100`; otherwise the action.
  var next: String {
    switch last {
    case .send(let request):
      let method = request.method ?? "CREATE"
      return [method, request.fields["Upload-Offset"]].compactMap { $0 }.joined(separator: " ")
    case .fail: return "fail"
    case .unsupported: return "unsupported"
    case .awaitBytes(let end): return "await \(end)"
    case .none: return "none"
    case .wait: return "wait"
    case .completed: return "completed"
    case .leftIncomplete: return "left incomplete"
    }
  }
  /// The most bytes that the request may carry: 0 for empty content, nil for no request or no limit.
  var maximum: UInt64? {
    switch request?.content {
    case .bytes(_, let maximum): maximum
    case .empty: 0
    case .absent, nil: nil
    }
  }
  mutating func newParts() -> [PartEnd] {
    machine.takeNotes().compactMap { if case .newPart(let end, _, _) = $0 { end } else { nil } }
  }
}
