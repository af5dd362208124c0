// One request and its answer, either the proper one or the odd one of the case.

import EventLoops
import Glibc
import NetworkTesting

/// On the connection's thread.
final class Exchange {
  let server: CaseServer
  let wire: any AnswerWire
  let request: WireRequest
  /// Bytes that were read but not stored yet.
  private var leftover: ArraySlice<UInt8> = []
  /// How many bytes of its content were read.
  private var count = 0
  /// Whether any of its bytes are stored.
  private var hasStored = false
  /// How often the upload resource had been requested before, because a later request ends an earlier one.
  private var turn = 0
  /// Whether a 104 has announced the upload resource that it creates.
  private var isAnnounced = false
  /// Its number among all requests of its case.
  private var number = 0
  /// Stream offset of its content's first byte.
  private var contentStart: UInt64 = 0

  init(server: CaseServer, wire: any AnswerWire, request: WireRequest) {
    (self.server, self.wire, self.request) = (server, wire, request)
  }

  private var plan: AnswerCase { server.plan }
  private var isPlain: Bool { plan.cell.wire == .plain }

  /// The destination of the content.
  private enum Place {
    case nowhere
    case upload(Int)
    case plain(Int)
  }

  /// Returns false if the connection must end.
  func run() throws -> Bool {
    let isPlainStream =
      (isPlain || request.head["Upload-Complete"] == nil) && ["POST", "PUT"].contains(request.method)
    let (odd, cuts) = server.conduct(request, isPlain: isPlainStream)
    number = server.state.withLock { $0.requests }
    let what =
      "\(request.method) \(request.target.suffix(12)) \(request.head["Upload-Offset"] ?? request.head["Stream-Offset"] ?? "") "
      + "\(request.head["Upload-Complete"] ?? "")"
    server.note("\(what) → \(odd?.description ?? (cuts ? "cut after \(plan.cutAfter)" : "proper"))")
    if request.isCreation { server.state.withLock { $0.newestBase = max($0.newestBase, request.head.offset) } }
    if let host = request.host, host != CaseIdentity.host { return try send(ReplyHead(502), .nowhere, isWhole: false) }
    guard let odd else { return try answerProperly(isPlainStream, cuts: cuts) }
    return try answer(odd, isPlainStream)
  }

  // MARK: A good server

  private func answerProperly(_ isPlainStream: Bool, cuts: Bool) throws -> Bool {
    let (place, refusal) = open(isPlainStream)
    if let refusal {
      let isWhole = try read(into: .nowhere, limit: .max)
      return try send(refusal, .nowhere, isWhole: isWhole)
    }
    try announce(place)
    if cuts {
      _ = try read(into: place, limit: plan.cutAfter)
      if plan.cutsByReset { wire.connection.reset() } else { drain(into: place) }
      return false
    }
    let isWhole = try read(into: place, limit: .max)
    return try send(proper(place), place, isWhole: isWhole)
  }

  /// Announces where the upload continues, if this server does so.
  private func announce(_ place: Place) throws {
    guard plan.habits.announces, request.isCreation, case .upload(let index) = place else { return }
    isAnnounced = true
    var fields = [version, ("Location", "/uploads/\(index)")]
    if plan.habits.appendLimit != nil { fields.append(("Upload-Limit", plan.habits.limits)) }
    try send(interim: ReplyHead(104, fields), place)
  }

  private var version: (name: String, value: String) { ("Upload-Draft-Interop-Version", "8") }

  /// Prepares the destination of the content. Nothing is stored for a refused request.
  private func open(_ isPlainStream: Bool) -> (Place, refusal: ReplyHead?) {
    server.state.withLock { state in
      if isPlainStream {
        let isNumbered = request.target.contains("~")
        state.stored.requests.append(.init(target: request.target, offset: isNumbered ? nil : request.head.offset))
        return (.plain(state.stored.requests.count - 1), nil)
      }
      if isPlain { return (.nowhere, request.method == "OPTIONS" ? nil : ReplyHead(404)) }
      if request.isCreation {
        state.stored.uploads.append(
          .init(base: request.head.offset, length: request.head["Upload-Length"].flatMap { UInt64($0) }))
        return (.upload(state.stored.uploads.count - 1), nil)
      }
      guard ["PATCH", "HEAD", "DELETE"].contains(request.method) else { return (.nowhere, nil) }
      guard let index = Int(request.target.split(separator: "/").last ?? ""),
        state.stored.uploads.indices.contains(index)
      else { return (.nowhere, ReplyHead(404)) }
      state.stored.uploads[index].turn += 1
      let upload = state.stored.uploads[index]
      turn = upload.turn
      if request.method == "PATCH", request.offset != UInt64(upload.bytes.count) || upload.isComplete {
        let isReplay = upload.isComplete && request.completes && request.offset == UInt64(upload.bytes.count)
        if !isReplay {
          return (
            .nowhere,
            ReplyHead(
              409,
              [
                version, ("Upload-Offset", "\(upload.bytes.count)"),
                ("Upload-Complete", upload.isComplete ? "?1" : "?0"),
              ])
          )
        }
      }
      return (.upload(index), nil)
    }
  }

  /// Reads and stores content, at most this number of bytes. Returns false if it has not ended by then.
  private func read(into place: Place, limit: Int) throws -> Bool {
    var count = 0
    var told = 0
    func keep(_ piece: [UInt8]) {
      let taken = piece.prefix(max(0, limit - count))
      leftover += piece.dropFirst(taken.count)
      count += taken.count
      store(taken, in: place)
    }
    store(leftover, in: place)
    leftover = []
    while count < limit {
      guard let piece = try wire.piece(brokenOff: keep) else {
        finish(place)
        return true
      }
      keep(piece)
      if let step = plan.habits.progress, count - told >= step, case .upload(let index) = place, count < limit {
        told = count
        let offset = server.state.withLock { $0.stored.uploads[index].bytes.count }
        try send(interim: ReplyHead(104, [version, ("Upload-Offset", "\(offset)")]), place)
      }
    }
    return false
  }

  private func store(_ piece: ArraySlice<UInt8>, in place: Place) {
    guard !piece.isEmpty else { return }
    count += piece.count
    server.state.withLock { state in
      state.received += piece.count
      switch place {
      case .nowhere: break
      case .upload(let index):
        guard state.stored.uploads[index].turn == turn else { return }
        state.stored.uploads[index].bytes += piece
        if !hasStored { state.progress += 1 }
        hasStored = true
      case .plain(let index): state.stored.requests[index].bytes += piece
      }
    }
  }

  /// Ends the connection with a FIN, and stores the bytes in flight, because TCP has acknowledged them.
  private func drain(into place: Place) {
    wire.connection.shutdownWriting()
    store(leftover, in: place)
    leftover = []
    do {
      while let piece = try wire.piece(brokenOff: { store($0[...], in: place) }) { store(piece[...], in: place) }
      finish(place)
    } catch {
      // The connection has ended first.
    }
  }

  /// The content has ended.
  private func finish(_ place: Place) {
    // Over HTTP/2, an aborted request may end as if it were complete.
    if let length = request.head["Content-Length"], length != "\(count)" { return }
    server.state.withLock { state in
      switch place {
      case .nowhere: break
      case .upload(let index) where state.stored.uploads[index].turn != turn: break
      case .upload(let index): if request.completes { state.stored.uploads[index].isComplete = true }
      case .plain(let index): state.stored.requests[index].isWhole = true
      }
    }
  }

  private func proper(_ place: Place) -> ReplyHead {
    let upload: (index: Int, upload: StoredStream.Upload)? =
      if case .upload(let index) = place { (index, server.state.withLock { $0.stored.uploads[index] }) } else { nil }
    var fields = [version]
    switch request.method {
    case "OPTIONS":
      return isPlain
        ? ReplyHead(200, [("Allow", "POST, PUT, OPTIONS")])
        : ReplyHead(200, [("Upload-Limit", plan.habits.limits), version])
    case "HEAD":
      guard let upload else { return ReplyHead(404) }
      fields += [
        ("Upload-Offset", "\(upload.upload.bytes.count)"), ("Upload-Complete", upload.upload.isComplete ? "?1" : "?0"),
        ("Upload-Limit", plan.habits.limits),
      ]
      return ReplyHead(204, fields)
    case "DELETE": return ReplyHead(204, fields)
    default: break
    }
    guard let upload else { return ReplyHead(200) }
    let isCreation = request.isCreation
    if isCreation {
      fields += [("Location", "/uploads/\(upload.index)"), ("Upload-Limit", plan.habits.limits)]
      if plan.habits.joinsParts, let id = request.head["Stream-ID"] { fields.append(("Stream-ID", id)) }
    }
    fields.append(("Upload-Complete", request.completes ? "?1" : "?0"))
    if plan.habits.tellsOffset { fields.append(("Upload-Offset", "\(upload.upload.bytes.count)")) }
    return ReplyHead(request.completes ? 200 : isCreation ? 201 : 204, fields)
  }

  // MARK: Odd answers

  private func answer(_ odd: OddReply, _ isPlainStream: Bool) throws -> Bool {
    // First, because the client may continue before the answer is over.
    let index = server.state.withLock { state in
      state.given.append((odd, nil, request.method))
      return state.given.count - 1
    }
    let (place, refusal) = odd.keeps ? open(isPlainStream) : (.nowhere, nil)
    if odd.keeps { try announce(place) }
    var isWhole = false
    switch odd.timing {
    case .beforeContent: break
    case .inContent(let count): isWhole = try read(into: place, limit: count)
    case .afterContent: isWhole = try read(into: place, limit: .max)
    case .late:
      isWhole = try read(into: place, limit: .max)
      wait(plan.responseLimit * 3 / 2)
    }
    // The client may end, and be judged, before the end of the content is read.
    if request.head["Content-Length"] == "\(count)" { finish(place) }
    let proper = refusal ?? self.proper(place)
    let head = odd.head(of: proper)
    server.state.withLock { state in
      state.given[index].head = head
      if case .plain(let place) = place, let head, head.status >= 300 { state.stored.requests[place].isRefused = true }
    }
    server.begin(odd)
    try sendOdd(odd, head, proper, place, isWhole: isWhole)
    if odd.tail != nil, request.method != "HEAD" {
      drain(into: place)
      noteEnd()
      return false
    }
    let goesOn = try end(odd, place, isWhole: isWhole, hasAnswered: head != nil && odd.cut == nil)
    if goesOn || odd.end != .reset { noteEnd() }
    return goesOn
  }

  private func sendOdd(
    _ odd: OddReply, _ head: ReplyHead?, _ proper: ReplyHead, _ place: Place, isWhole: Bool
  ) throws {
    switch odd.change {
    case .garbage(let bytes):
      note(place, isWhole: isWhole) { $0.noteGarbage(bytes, to: request, $1) }
      return try wire.connection.send(bytes)
    case .interims(let heads): for head in heads { try send(interim: head, place) }
    case .status(let status, let fields, _) where status < 200: try send(interim: ReplyHead(status, fields), place)
    default: break
    }
    guard let head else { return }
    let bytes = wire.bytes(of: head, isInterim: false, hasNoContent: request.method == "HEAD")
    if let cut = odd.cut {
      let count = min(bytes.head.count - 1, Int(cut * Double(bytes.head.count)))
      return try wire.connection.send(Array(bytes.head.prefix(count)))
    }
    note(place, isWhole: isWhole) { $0.note(head, to: request, $1) }
    if let tail = odd.tail, request.method != "HEAD" { return try send(head, before: tail) }
    try wire.connection.send(bytes.head + bytes.body)
    if case .interimAfter(let interim) = odd.change { try send(interim: interim, place) }
  }

  /// Sends a response's head, and then a body for as long as the client accepts it.
  private func send(_ head: ReplyHead, before tail: OddReply.Tail) throws {
    try wire.connection.send(wire.openHead(of: head))
    server.state.withLock { $0.leftUnread = true }
    if tail != .silence {
      let piece = [UInt8](repeating: 46, count: tail == .drips ? 1 : 16_000)
      wire.connection.sendUntilEnd(slowly: tail == .drips, wire.bodyPiece(piece))
    }
    wire.connection.waitForPeerEnd()
  }

  private func end(_ odd: OddReply, _ place: Place, isWhole: Bool, hasAnswered: Bool) throws -> Bool {
    switch odd.end {
    case .goesOn where hasAnswered:
      if !isWhole { _ = try read(into: place, limit: .max) }
      return true
    case .goesOn, .fin:
      drain(into: place)
      return false
    case .silence:
      server.state.withLock { $0.leftUnread = true }
      wire.connection.waitForPeerEnd()
      // TCP has acknowledged the bytes before the client's end.
      drain(into: place)
      return false
    case .reset:
      server.state.withLock { $0.leftUnread = true }
      wire.connection.reset()
      return false
    case .streamReset(let code):
      try (wire as? HTTP2Wire)?.resetStream(code)
      return true
    case .goAway(let code):
      try (wire as? HTTP2Wire)?.goAway(code)
      drain(into: place)
      return false
    }
  }

  private func wait(_ duration: Duration) {
    let nanoseconds = duration.components.seconds * 1_000_000_000 + duration.components.attoseconds / 1_000_000_000
    var time = timespec(tv_sec: Int(nanoseconds / 1_000_000_000), tv_nsec: Int(nanoseconds % 1_000_000_000))
    nanosleep(&time, nil)
  }

  // MARK: Sending

  @discardableResult
  private func send(_ head: ReplyHead, _ place: Place, isWhole: Bool) throws -> Bool {
    note(place, isWhole: isWhole) { $0.note(head, to: request, $1) }
    let bytes = wire.bytes(of: head, isInterim: false, hasNoContent: request.method == "HEAD")
    try wire.connection.send(bytes.head + bytes.body)
    return true
  }

  private func send(interim head: ReplyHead, _ place: Place) throws {
    note(place, isWhole: false) { $0.note(interim: head, to: request, $1) }
    try wire.connection.send(wire.bytes(of: head, isInterim: true, hasNoContent: true).head)
  }

  /// Records what the client may conclude from an answer, before it is sent.
  private func note(_ place: Place, isWhole: Bool, _ note: (inout Claims, Claims.Subject) -> Void) {
    server.state.withLock { state in
      // The destination of the content, or the requested upload resource.
      var index = Int(request.target.split(separator: "/").last ?? "").flatMap {
        state.stored.uploads.indices.contains($0) ? $0 : nil
      }
      if case .upload(let created) = place { index = created }
      var base = request.isCreation ? request.head.offset : state.newestBase
      var stored = base
      if let index {
        base = state.stored.uploads[index].base
        stored = base + UInt64(state.stored.uploads[index].bytes.count)
      }
      var start = base + (request.method == "PATCH" ? request.offset ?? 0 : 0)
      if case .plain(let index) = place {
        let taken = state.stored.requests[index]
        (start, stored) = (taken.range.lowerBound, taken.range.upperBound)
      }
      contentStart = start
      note(
        &state.claims,
        Claims.Subject(
          base: base, stored: stored, start: start, end: isWhole ? start + UInt64(count) : announcedEnd(start),
          request: number, isAnnounced: isAnnounced))
    }
  }

  /// The end of the content that begins at a stream offset, if the client has stated it.
  private func announcedEnd(_ start: UInt64) -> UInt64? {
    request.head["Content-Length"].flatMap { UInt64($0) }.map { start + $0 }
  }

  /// The client has ended the content, or the connection.
  private func noteEnd() {
    server.state.withLock { $0.claims.noteEnd(of: number, at: contentStart + UInt64(count)) }
  }
}
