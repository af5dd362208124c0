// One request that brings bytes of a stream: found its place, compared, stored, acknowledged.

internal import EventLoops
internal import Glibc
internal import JSONLines

/// Stores the body of a POST or PUT at its place in its stream.
///
/// Request fields: `Stream-ID` (one to 64 of `[A-Za-z0-9._-]`, not beginning with a dot; made by the server if missing)
/// and `Stream-Offset` (where the body begins in the stream, in bytes; 0 if missing). Answer fields: `Stream-ID`,
/// `Stream-Offset` (how many bytes are stored: go on from there) and `Stream-Missing` (how many of them are holes).
final class StreamStoreHandler: RequestHandler {
  private enum State {
    case new
    /// The stream is being completed by another request.
    case waiting
    case streaming(StoredStream, StreamPlacement)
    case done
  }

  private let head: RequestHead
  private let registry: StreamRegistry
  private var exchange: (any Exchange)?
  private var state = State.new
  private var name: StreamName?
  private var offset: UInt64 = 0
  private var peer = ""
  /// Bytes of this request that were stored.
  private var stored: UInt64 = 0

  init(head: RequestHead, registry: StreamRegistry) {
    self.head = head
    self.registry = registry
  }

  // MARK: RequestHandler

  func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    peer = exchange.peer
    guard head.framing != .absent else {
      return refuse(411, "a stream needs Transfer-Encoding: chunked or a Content-Length")
    }
    guard let id = optionalField("stream-id"), let position = optionalField("stream-offset") else {
      return refuse(400, "Stream-ID and Stream-Offset may be given once")
    }
    if let text = id, !StreamName.isValidID(text) {
      return refuse(
        400, "a Stream-ID is one to 64 letters, digits, dots, underscores and hyphens, and does not begin with a dot")
    }
    if let position {
      guard !position.isEmpty, position.utf8.allSatisfy({ Octet.isDigit($0) }), let number = UInt64(position) else {
        return refuse(400, "a Stream-Offset is a number of bytes below 2^64")
      }
      guard id != nil || number == 0 else {
        return refuse(400, "a Stream-Offset needs a Stream-ID to say of which stream")
      }
      offset = number
    }
    name = StreamName(
      path: head.target.path, streamID: id ?? StreamName.randomID(), mediaType: head.fields.single("content-type"))
    claim()
  }

  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
    guard case .streaming(let stream, var placement) = state else { return }
    let count = pieces.reduce(0) { $0 + $1.count }
    let repeated = placement.repeated(count)
    if repeated > 0 {
      do throws(SystemError) {
        guard
          try BodyWriter.matches(stream.descriptor, bytes, pieces, count: repeated, at: placement.cursor)
        else {
          return conflict(stream, "the bytes differ from those that are stored at the same offset")
        }
      } catch {
        return fail(stream, error)
      }
      placement.verified(repeated)
    }
    if count > repeated {
      guard !stream.isComplete else { return conflict(stream, "the stream is complete and has no such bytes") }
      let (written, error) = BodyWriter.write(
        stream.descriptor, bytes, pieces, skipping: repeated, at: placement.cursor)
      placement.stored(written)
      stored += UInt64(written)
      stream.length = placement.length
      if let error { return fail(stream, error) }
    }
    state = .streaming(stream, placement)
  }

  func end() {
    guard case .streaming(let stream, _) = state else { return }
    state = .done
    // A client that lost the answer asks again, and gets it.
    if stream.isComplete { return acknowledge(stream, 200) }
    leave(stream)
    registry.finish(stream) { [self] error in
      if let error { return fail(stream, error) }
      var event = event(.ended, stream)
      event.file = stream.name.final
      event.bytes = stream.length
      event.missing = stream.missing
      registry.emit(event)
      acknowledge(stream, stream.isNew ? 201 : 200)
    }
  }

  func aborted(_ reason: AbortReason) {
    if case .streaming(let stream, _) = state { interrupt(stream, reason.description) }
    state = .done
    exchange = nil
  }

  func serverStops() {
    switch state {
    case .streaming(let stream, _) where !stream.isComplete:
      // TCP has told the client that we have these bytes.
      exchange?.takeArrived()
      guard case .streaming = state else { return }
      turnAway(stream, 503, "the server stops")
    case .new, .waiting:
      state = .done
      answer(503, nil, "the server stops", retries: true)
    case .streaming, .done: break
    }
  }

  // MARK: Beginning

  /// The value of a field; `.some(nil)` if it is not there, nil if it is there more than once.
  private func optionalField(_ name: String) -> String?? {
    switch head.fields.count(name) {
    case 0: .some(nil)
    case 1: .some(head.fields.single(name))
    default: nil
    }
  }

  /// Takes the stream over, finds the place of the body in it, and asks for the body.
  private func claim() {
    guard let name, let exchange else { return }
    if let older = registry.owner(of: name) { older.yieldStream() }
    let waits = registry.waits(for: name) { [self] in
      if case .waiting = state { claim() }
    }
    if waits {
      state = .waiting
      return
    }
    let stream: StoredStream
    do throws(SystemError) {
      stream = try registry.store.open(name)
    } catch {
      state = .done
      emitRefusal(Self.status(of: error), "\(error)")
      return answer(Self.status(of: error), nil, error.reason, retries: true)
    }
    let beginning = StreamPlacement.begin(
      offset: offset, length: stream.length, isComplete: stream.isComplete, maximumHole: registry.maximumHole)
    switch beginning {
    case .beyondEnd: return conflict(stream, "the stream is complete and ends before this offset")
    case .holeTooLarge: return conflict(stream, "the hole before this offset would be larger than the server allows")
    case .at(let placement): state = .streaming(stream, placement)
    case .afterHole(let placement, let length):
      do throws(SystemError) {
        try registry.store.makeHole(stream, length: length)
      } catch {
        return fail(stream, error)
      }
      state = .streaming(stream, placement)
    }
    registry.claim(name, for: self)
    var event = event(stream.isNew ? .begun : .continued, stream)
    event.offset = offset
    event.missing = stream.missing
    if stream.isComplete { event.reason = "the stream is complete already" }
    registry.emit(event)
    exchange.acceptBody()
  }

  /// A newer request goes on with the stream: everything that has arrived here is stored, then this connection ends.
  private func yieldStream() {
    exchange?.takeArrived()
    guard case .streaming(let stream, _) = state else { return }
    interrupt(stream, "a newer request goes on with the stream")
    state = .done
    exchange?.disconnect()
    exchange = nil
  }

  // MARK: Ending

  private func leave(_ stream: StoredStream) { registry.release(stream.name, by: self) }

  private func interrupt(_ stream: StoredStream, _ reason: String, status: Int? = nil) {
    leave(stream)
    // Asking for the answer again interrupts nothing.
    if stream.isComplete { return }
    var event = event(.interrupted, stream)
    event.offset = stream.length
    event.bytes = stored
    event.missing = stream.missing
    event.reason = reason
    event.status = status
    registry.emit(event)
  }

  /// The bytes contradict what is stored. The file is not touched.
  private func conflict(_ stream: StoredStream, _ reason: String) {
    leave(stream)
    state = .done
    emitRefusal(409, reason, stream)
    answer(409, stream, reason, retries: false)
  }

  /// The disk did not take the bytes. What it took is counted, the rest is the client's still.
  private func fail(_ stream: StoredStream, _ error: SystemError) {
    turnAway(stream, Self.status(of: error), error.reason)
  }

  private func turnAway(_ stream: StoredStream, _ status: Int, _ reason: String) {
    interrupt(stream, reason, status: status)
    state = .done
    answer(status, stream, reason, retries: true)
  }

  private func refuse(_ status: Int, _ reason: String) {
    state = .done
    emitRefusal(status, reason)
    answer(status, nil, reason, retries: false)
  }

  private static func status(of error: SystemError) -> Int {
    switch error.code {
    case ENOSPC, EDQUOT, EFBIG: 507
    case EMFILE, ENFILE, ENOMEM: 503
    default: 500
    }
  }

  private func acknowledge(_ stream: StoredStream, _ status: Int) {
    leave(stream)
    var body = JSONLine(event: "stored")
    body.add("name", stream.name.final)
    body.add("bytes", stream.length)
    body.add("missing", stream.missing)
    respond(Response(status, fields(stream), body: body.line + "\n", type: "application/json"))
  }

  private func answer(_ status: Int, _ stream: StoredStream?, _ reason: String, retries: Bool) {
    var fields = stream.map(fields) ?? [:]
    if retries { fields.append("retry-after", "2") }
    respond(Response(status, fields, body: reason + "\n"))
  }

  private func respond(_ response: Response) {
    // Let go of first: the connection lets go of us in turn, and hears nothing more.
    let exchange = exchange
    self.exchange = nil
    exchange?.respond(response)
  }

  private func fields(_ stream: StoredStream) -> HeaderFields {
    [
      "stream-id": stream.name.streamID, "stream-offset": String(stream.length),
      "stream-missing": String(stream.missing),
    ]
  }

  // MARK: Telling

  private func event(_ kind: ServerEvent.Kind, _ stream: StoredStream) -> ServerEvent {
    var event = ServerEvent(kind, peer: peer)
    event.stream = stream.name.streamID
    event.file = stream.fileName
    return event
  }

  private func emitRefusal(_ status: Int, _ reason: String, _ stream: StoredStream? = nil) {
    var event = ServerEvent(.refused, peer: peer, status: status, reason: reason)
    event.stream = name?.streamID
    event.file = stream?.fileName
    event.offset = stream?.length
    registry.emit(event)
  }
}
