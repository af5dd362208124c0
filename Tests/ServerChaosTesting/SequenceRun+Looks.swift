// Looks behind a step: what an upload says of itself, whether that holds, what is left of a quota.

internal import EventLoops

extension SequenceRun {
  /// Asks an upload where it stands, and appends there.
  func settle(_ upload: UploadModel, probe count: Int?) throws(Violation) {
    guard !upload.location.isEmpty else { return }
    let call = query(.head, token: upload.token, upload)
    send(call, nil, .afterFirst)
    try judge([call])
    if let count { try probe(upload, count) }
  }

  /// Appends where an upload is said to stand, which must be accepted.
  func probe(_ upload: UploadModel, _ count: Int) throws(Violation) {
    guard upload.isOpen, upload.exact != nil else { return }
    // A stream that somebody else has completed, or may have, takes no more.
    guard upload.stream.completeEnd == nil, !upload.stream.mayBeComplete else { return }
    var detail = RequestDetail()
    (detail.count, detail.isChunked, detail.isOnNewConnection) = (count, count % 2 == 0, count % 3 == 0)
    let call = append(detail, token: upload.token, upload, completes: false)
    send(call, nil, .afterFirst)
    tally.probes += 1
    let offset = call.offset
    try judge([call])
    // However many requests have brought bytes of the stream.
    if call.outcome.status == 409 {
      throw fail("an announced offset is refused", "\(offset): \(call.outcome.text)")
    }
  }

  /// Deletes what is unfinished and fills each token's quota to the last byte: what others did must not have used any
  /// of it.
  func countQuota() throws(Violation) {
    // What nobody knows the URL of, or what is in a stream of plain requests, cannot be deleted.
    guard !streams.contains(where: \.hasUnknown) else { return }
    // Of a recording that several uploads have stored, a deletion may leave a part.
    guard Set(uploads.map { ObjectIdentifier($0.stream) }).count == uploads.count else { return }
    // What an upload has brought that became longer than its length stays for a while.
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
      let call = create(detail, token: token, newStream())
      send(call, nil, .afterFirst)
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

  /// What a plain request stores counts against the quota of its token and of no other, until the stream is complete.
  private func countPlain(_ token: Int) throws(Violation) {
    note("a plain request of \(token == 0 ? "owner" : "other") in the quotas")
    let stream = newStream()
    let count = UInt64(1000 + sequence.index % 1000)
    var detail = RequestDetail()
    (detail.count, detail.isChunked) = (Int(count), true)
    let open = plain(detail, token: token, stream)
    connect(open)
    // All but the end of the body.
    open.connection?.send(open.request.bytes.dropLast(5)[...])
    open.connection?.waitUntilTaken()
    for isOver in [false, true] {
      if isOver { open.connection?.disconnect() }
      // HEAD waits until the server has served what has come.
      for anchor in anchors { send(query(.head, token: anchor.token, anchor), nil, .afterFirst) }
      try fill(1 - token, upTo: options.quota)
      try fill(token, upTo: options.quota - count)
    }
    (detail.count, detail.isChunked) = (0, false)
    let end = Call(
      .plain, token: token, upload: nil, stream: stream, detail: detail, offset: count, count: 0, completes: true,
      length: nil,
      request: ChaosRequest(
        "POST", open.request.target, token: tokens[token],
        ["Content-Type: \(StreamModel.types[stream.type].type)", "Stream-ID: \(stream.id)", "Stream-Offset: \(count)"],
        content: []))
    send(end, nil, .afterFirst)
    guard end.outcome.status == 200 || end.outcome.status == 201 else {
      throw fail("a plain request is not continued", end.outcome.text)
    }
    (stream.completeEnd, stream.plainEnd[token]) = (count, count)
    insert(token, stream)
    try fill(token, upTo: options.quota)
  }

  /// An upload takes exactly that many bytes of a token's quota.
  private func fill(_ token: Int, upTo room: UInt64) throws(Violation) {
    var detail = RequestDetail()
    (detail.count, detail.isChunked) = (Int(options.quota) + 1, true)
    let call = create(detail, token: token, newStream())
    send(call, nil, .afterFirst)
    guard let location = call.outcome.location else { throw fail("a creation is refused", call.outcome.text) }
    let upload = UploadModel(
      location, call.stream, base: 0, token: token, version: call.detail.version, length: nil)
    if call.outcome.status != 507 || call.outcome.final?.offset != room {
      throw fail(
        call.outcome.final?.offset ?? 0 < room ? "a quota is used by others" : "a quota takes more than it says",
        "\(token == 0 ? "owner" : "other"), room for \(room): \(call.outcome.text)")
    }
    send(query(.delete, token: token, upload), nil, .afterFirst)
    call.stream.wasCancelled = true
    call.stream.reset()
    tally.quotas += 1
  }
}
