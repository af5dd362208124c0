// A sequence's requests: made, sent simultaneously, and answered.

internal import EventLoops
internal import Glibc

extension SequenceRun {
  // MARK: Making

  func create(_ detail: RequestDetail, token: Int, _ stream: StreamModel, otherType: Bool = false) -> Call {
    let type = StreamModel.types[otherType ? 1 - stream.type : stream.type]
    let end = knownEnd(stream, token)
    // With a log, uploads of a stream share nothing: any token may create one at any offset.
    let stream = isLog ? newPart(of: stream) : stream
    // From the beginning, which repeats stored bytes, or from the end.
    let offset = detail.hole > 0 ? end + UInt64(detail.hole) : detail.isChunked ? 0 : end
    let completes = detail.completes
    let content = content(
      of: stream, from: token, offset..<(offset + UInt64(detail.count)), detail, completes: completes)
    var length: UInt64?
    var lines = [
      "Content-Type: \(type.type)", "Stream-ID: \(stream.id)",
      ChaosRequest.completeness(completes, version: detail.version),
    ]
    if offset > 0 { lines.append("Stream-Offset: \(offset)") }
    if completes, !detail.isChunked { length = UInt64(detail.count) }
    if detail.announcesLength, UploadModel.isNew(detail.version) {
      length = completes ? UInt64(detail.count) : UInt64(detail.count) * 2 + 100
      lines.append("Upload-Length: \(length ?? 0)")
    }
    lines += digestLine(detail, content)
    return Call(
      .create, token: token, upload: nil, stream: stream, detail: detail, offset: offset, count: UInt64(detail.count),
      completes: completes, length: length,
      request: ChaosRequest(
        "POST", "/chaos/\(stream.stem)\(type.suffix)", token: tokens[token], version: detail.version, lines,
        content: content, isChunked: detail.isChunked))
  }

  /// - Parameter expects: whether the client waits for 100 (Continue) before the content.
  func plain(_ detail: RequestDetail, token: Int, _ stream: StreamModel, expects: Bool = false) -> Call {
    let type = StreamModel.types[stream.type]
    let stream = isLog ? plainPart(of: stream) : stream
    let end = isLog ? stream.plainEnd[token] : knownEnd(stream, token)
    let offset = detail.hole > 0 ? end + UInt64(detail.hole) : detail.isChunked ? 0 : end
    let content = content(of: stream, from: token, offset..<(offset + UInt64(detail.count)), detail, completes: true)
    var lines = ["Content-Type: \(type.type)", "Stream-ID: \(stream.id)"]
    if offset > 0 { lines.append("Stream-Offset: \(offset)") }
    if expects { lines.append("Expect: 100-continue") }
    return Call(
      .plain, token: token, upload: nil, stream: stream, detail: detail, offset: offset, count: UInt64(detail.count),
      completes: true, length: nil,
      request: ChaosRequest(
        "POST", "/chaos/\(stream.stem)\(type.suffix)", token: tokens[token], lines, content: content,
        isChunked: detail.isChunked))
  }

  func append(_ detail: RequestDetail, token: Int, _ upload: UploadModel, completes: Bool) -> Call {
    let known = Int(upload.exact ?? upload.acknowledged)
    let offset = UInt64(max(0, completes ? known : known + detail.misplacement))
    var count = UInt64(detail.count)
    if let length = upload.length ?? upload.givenLength {
      let room = length - min(length, offset)
      count = completes ? room : min(count, room)
    }
    if completes, token == upload.token, !detail.isChunked { upload.givenLength = offset + count }
    let start = upload.base + offset
    var detail = detail
    if completes, detail.digest == .wrong { detail.digest = .right }
    let content = content(of: upload.stream, from: token, start..<(start + count), detail, completes: completes)
    var lines = ["Upload-Offset: \(offset)", ChaosRequest.completeness(completes, version: upload.version)]
    if UploadModel.isNew(upload.version) { lines.append("Content-Type: application/partial-upload") }
    lines += digestLine(detail, content)
    return Call(
      completes ? .complete : .append, token: token, upload: upload, stream: upload.stream, detail: detail,
      offset: offset, count: count, completes: completes, length: nil,
      request: ChaosRequest(
        "PATCH", upload.location, token: tokens[token], version: upload.version, lines, content: content,
        isChunked: detail.isChunked))
  }

  func query(_ intent: Intent, token: Int, _ upload: UploadModel) -> Call {
    Call(
      intent, token: token, upload: upload, stream: upload.stream, detail: RequestDetail(), offset: 0, count: 0,
      completes: false, length: nil,
      request: ChaosRequest(
        intent == .head ? "HEAD" : "DELETE", upload.location, token: tokens[token], version: upload.version, []))
  }

  /// The end of a stream as known to a token.
  private func knownEnd(_ stream: StreamModel, _ token: Int) -> UInt64 {
    let ends = uploads.filter { $0.stream.stream === stream.stream && $0.token == token && $0.isOpen }
      .map { $0.base + ($0.exact ?? $0.acknowledged) }
    let plainEnd = (stream.stream.plainPart ?? stream).plainEnd[token]
    return max(ends.max() ?? 0, plainEnd)
  }

  private func newPart(of stream: StreamModel) -> StreamModel {
    let part = stream.newPart()
    streams.append(part)
    return part
  }

  private func plainPart(of stream: StreamModel) -> StreamModel {
    if let part = stream.stream.plainPart { return part }
    let part = stream.makePlainPart()
    streams.append(part)
    return part
  }

  /// A token's content for a range of a stream: its own bytes, or a guess of the other's.
  private func content(
    of stream: StreamModel, from token: Int, _ range: Range<UInt64>, _ detail: RequestDetail, completes: Bool
  ) -> [UInt8] {
    if let owner = stream.owner, owner != token, detail.guessesRight, !isVague(stream) {
      return stream.content[owner][range]
    }
    stream.sent[token].insert(range)
    if !range.isEmpty || completes { stream.sentEnd[token] = max(stream.sentEnd[token], range.upperBound) }
    if !range.isEmpty { stream.hasContent = true }
    return stream.content[token][range]
  }

  private func digestLine(_ detail: RequestDetail, _ content: [UInt8]) -> [String] {
    switch detail.digest {
    case .none: []
    case .right: ["Content-Digest: \(ChaosBytes.contentDigest(content))"]
    case .wrong: ["Content-Digest: \(ChaosBytes.contentDigest(content + [0]))"]
    }
  }

  // MARK: Sending

  func connect(_ call: Call) {
    call.server = Int.random(in: ports.indices, using: &servers)
    if !call.detail.isOnNewConnection, let connection = kept[call.token][call.server], connection.isOpen {
      call.connection = connection
    } else {
      call.connection = ChaosConnection(port: ports[call.server])
    }
    kept[call.token][call.server] = nil
    // Pipelined requests of both tokens leave one connection for both.
    if kept[1 - call.token][call.server] === call.connection { kept[1 - call.token][call.server] = nil }
    call.sentAt = .now
  }

  /// Sends one request or two simultaneous ones, and reads the results.
  func send(_ first: Call, _ second: Call?, _ interleaving: Interleaving) {
    // Both connections are established before a byte is sent.
    connect(first)
    if let second {
      if case .pipelined = interleaving {
        (second.connection, second.server) = (first.connection, first.server)
      } else {
        connect(second)
      }
    }
    switch interleaving {
    case .beforeFirst:
      if let second { sendAll(second) }
      sendAll(first)
    case .within(let share):
      let stop = first.request.end(at: min(share, first.detail.drop ?? share))
      first.connection?.send(first.request.bytes[..<stop])
      if let second { sendAll(second) }
      sendAll(first, from: stop)
    case .afterFirst, .pipelined:
      sendAll(first)
      if let second { sendAll(second) }
    }
    finish(first)
    if let second { finish(second) }
  }

  private func sendAll(_ call: Call, from start: Int = 0) {
    guard let drop = call.detail.drop else {
      var position = start
      for (index, pause) in call.detail.pauses.enumerated() {
        let stop = call.request.end(at: Double(index + 1) / Double(call.detail.pauses.count + 1))
        guard stop > position else { continue }
        call.connection?.send(call.request.bytes[position..<stop])
        position = stop
        // So that bytes arrive while the disk is busy with others.
        usleep(UInt32(pause))
      }
      call.connection?.send(call.request.bytes[position...])
      return
    }
    let end = max(start, call.request.end(at: drop))
    call.connection?.send(call.request.bytes[start..<end])
    if call.detail.dropsByReset { call.connection?.reset() } else { call.connection?.disconnect() }
    call.isDropped = true
  }

  /// Reads the answer. The connection is kept if its state is certain.
  func finish(_ call: Call) {
    tally.requests += 1
    let who = call.token == 0 ? "owner" : "other"
    let length = call.length.map { " of \($0)" } ?? ""
    let server = ports.count > 1 ? " to server \(call.server)" : ""
    let text = "  \(who): \(call.request.text) at \(call.offset)\(length)\(server) → "
    guard !call.isDropped else {
      note(text + "dropped by the client")
      return
    }
    if let connection = call.connection { call.outcome = connection.outcome(ofHEAD: call.request.isHEAD) }
    note(text + (call.connection == nil ? "no connection" : call.outcome.text))
    if call.outcome.isSuccess, let connection = call.connection, connection.isOpen {
      kept[call.token][call.server] = connection
    }
    if let final = call.outcome.final, !call.isForeign, ![404, 410].contains(final.status) {
      call.upload?.lastTouch = call.sentAt
    }
  }
}
