// Checks after a step: an upload's reported offset, whether it is valid, and the rest of a quota.

internal import EventLoops

extension SequenceRun {
  /// Asks an upload for its offset, and appends there.
  func settle(_ upload: UploadModel, probe count: Int?) throws(Violation) {
    guard !upload.location.isEmpty else { return }
    let call = query(.head, token: upload.token, upload)
    send(call, nil, .afterFirst)
    try judge([call])
    if let count { try probe(upload, count) }
  }

  /// Appends at an upload's reported offset, which must be accepted.
  func probe(_ upload: UploadModel, _ count: Int) throws(Violation) {
    guard upload.isOpen, upload.exact != nil else { return }
    // A stream that another request has completed, or may have, accepts no more.
    guard upload.stream.completeEnd == nil, !upload.stream.mayBeComplete else { return }
    var detail = RequestDetail()
    (detail.count, detail.isChunked, detail.isOnNewConnection) = (count, count % 2 == 0, count % 3 == 0)
    let call = append(detail, token: upload.token, upload, completes: false)
    send(call, nil, .afterFirst)
    tally.probes += 1
    let offset = call.offset
    try judge([call])
    // The offset that was announced instead holds.
    if call.wasOvertaken { return try probe(upload, count) }
    // However many requests have added bytes of the stream. If its owner is unknown, these may be bytes of others.
    if call.outcome.status == 409, !isVague(upload.stream) {
      throw fail("an announced offset is refused", "\(offset): \(call.outcome.text)")
    }
  }

  /// Deletes unfinished uploads and fills each token's quota to the last byte, which other uploads must not have used.
  func countQuota() throws(Violation) {
    // Uploads with an unknown URL, or in a stream of plain requests, cannot be deleted.
    guard !streams.contains(where: \.hasUnknown) else { return }
    // A deletion may leave a part of a recording that several uploads have stored.
    guard Set(uploads.map { ObjectIdentifier($0.stream) }).count == uploads.count else { return }
    // The bytes of an upload that became longer than its length stay for a while.
    guard !uploads.contains(where: { $0.phase == .lost }) else { return }
    note("quotas")
    for upload in uploads where upload.isOpen {
      let call = query(.delete, token: upload.token, upload)
      send(call, nil, .afterFirst)
      try judge([call])
    }
    for token in 0...1 {
      var detail = RequestDetail()
      detail.count = Int(options.quota)
      var call = create(detail, token: token, newStream())
      let deadline = MonotonicInstant.now + quotaPatience
      send(call, nil, .afterFirst)
      while call.outcome.status == 507, MonotonicInstant.now < deadline {
        call = create(detail, token: token, newStream())
        send(call, nil, .afterFirst)
      }
      guard call.outcome.status == 201, let location = call.outcome.location else {
        throw fail("a quota is not free again", "\(token == 0 ? "owner" : "other"): \(call.outcome.text)")
      }
      try judge([call])
      detail.count = 1
      guard let upload = uploads.last(where: { $0.location == location }) else { continue }
      let more = append(detail, token: token, upload, completes: false)
      send(more, nil, .afterFirst)
      guard more.outcome.status == 507 else {
        throw fail("a quota takes more than it says", "\(token == 0 ? "owner" : "other"): \(more.outcome.text)")
      }
      tally.quotas += 1
      let end = query(.delete, token: token, upload)
      send(end, nil, .afterFirst)
      try judge([end])
    }
    for token in 0...1 { try countPlain(token) }
  }

  /// The bytes of a plain request count against its own token's quota only, until the stream is complete.
  private func countPlain(_ token: Int) throws(Violation) {
    note("a plain request of \(token == 0 ? "owner" : "other") in the quotas")
    let stream = newStream()
    let count = UInt64(1000 + sequence.index % 1000)
    var detail = RequestDetail()
    (detail.count, detail.isChunked) = (Int(count), true)
    // With a log, a request has its part of the quotas once the brokers have accepted it.
    let deadline = MonotonicInstant.now + quotaPatience
    var open = plain(detail, token: token, stream, expects: isLog)
    connect(open)
    while isLog {
      open.connection?.send(open.request.bytes[..<open.request.headCount])
      let status = open.connection?.answer()?.status
      if status == 100 { break }
      // The uploads that were cancelled before may still count at this server.
      guard status == 507, MonotonicInstant.now < deadline else {
        throw fail("a plain request is not accepted", "\(open.request.text) → \(status ?? 0)")
      }
      open.connection?.disconnect()
      open = plain(detail, token: token, stream, expects: true)
      connect(open)
    }
    // All but the end of the body.
    open.connection?.send(open.request.bytes.dropLast(5).dropFirst(isLog ? open.request.headCount : 0))
    open.connection?.waitUntilTaken()
    for isOver in [false, true] {
      if isOver { open.connection?.disconnect() }
      // HEAD waits until the server has processed everything that has arrived.
      for anchor in anchors { send(query(.head, token: anchor.token, anchor), nil, .afterFirst) }
      try fill(1 - token, upTo: options.quota)
      try fill(token, upTo: options.quota - count)
    }
    (detail.count, detail.isChunked) = (0, false)
    let end = Call(
      .plain, token: token, upload: nil, stream: open.stream, detail: detail, offset: count, count: 0, completes: true,
      length: nil,
      request: ChaosRequest(
        "POST", open.request.target, token: tokens[token],
        ["Content-Type: \(StreamModel.types[stream.type].type)", "Stream-ID: \(stream.id)", "Stream-Offset: \(count)"],
        content: []))
    send(end, nil, .afterFirst)
    guard end.outcome.status == 200 || end.outcome.status == 201 else {
      throw fail("a plain request is not continued", end.outcome.text)
    }
    (open.stream.completeEnd, open.stream.plainEnd[token]) = (count, count)
    insert(token, open.stream)
    try fill(token, upTo: options.quota)
  }

  /// How long a server may count other bytes of a token than are stored.
  ///
  /// With a log, a server counts the bytes of other servers when it reads their messages, usually milliseconds later,
  /// and may refuse an upload shortly after another server has cancelled one (docs/scaling.md, "Tolerance"). One server
  /// may also begin to read a request after a later one. A wrong count that stays is a violation.
  private var quotaPatience: Duration { isLog ? .seconds(3) : .zero }

  /// An upload uses exactly that many bytes of a token's quota.
  private func fill(_ token: Int, upTo room: UInt64) throws(Violation) {
    let deadline = MonotonicInstant.now + quotaPatience
    var call = try fill(token)
    while call.outcome.status != 507 || call.outcome.final?.offset != room {
      guard MonotonicInstant.now < deadline else {
        throw fail(
          call.outcome.final?.offset ?? 0 < room ? "a quota is used by others" : "a quota takes more than it says",
          "\(token == 0 ? "owner" : "other"), room for \(room): \(call.outcome.text)")
      }
      call = try fill(token)
    }
    tally.quotas += 1
  }

  /// Sends an upload that is longer than a token's quota, and deletes it.
  private func fill(_ token: Int) throws(Violation) -> Call {
    var detail = RequestDetail()
    (detail.count, detail.isChunked) = (Int(options.quota) + 1, true)
    let call = create(detail, token: token, newStream())
    send(call, nil, .afterFirst)
    guard let location = call.outcome.location else {
      // With a log, the upload before it may still count at this server.
      if isLog, call.outcome.status == 507 { return call }
      throw fail("a creation is refused", call.outcome.text)
    }
    let upload = UploadModel(
      location, call.stream, base: 0, token: token, version: call.detail.version, length: nil)
    send(query(.delete, token: token, upload), nil, .afterFirst)
    call.stream.wasCancelled = true
    call.stream.reset()
    return call
  }

  /// After the lifetime of all uploads: none of those that nobody continued may be there.
  ///
  /// With a log, one of the servers ends an upload up to a 64th of its lifetime late (docs/scaling.md, "Ages"), and
  /// searches for such uploads every 50 ms or more rarely (`LogWatch`). A second is for a busy machine. An eighth of an
  /// age may be forgotten only if a server starts, and none does here. With a directory, the model has no such limit.
  func checkExpiry() throws(Violation) {
    guard isLog else { return }
    let lifetime = Duration.seconds(options.maximumAge)
    let limit = lifetime + max(lifetime / 64, Duration.milliseconds(50))
    for upload in uploads where upload.isOpen && !upload.location.isEmpty {
      guard MonotonicInstant.now - upload.lastTouch > limit + .seconds(1) else { continue }
      let call = query(.head, token: upload.token, upload)
      send(call, nil, .afterFirst)
      if call.outcome.isSuccess, call.outcome.final?.isComplete != true {
        throw fail("an upload outlives its lifetime", call.outcome.text)
      }
      try judge([call])
    }
  }
}
