// One sequence against a server: the steps in order, and the checks after each.

internal import Digests
internal import EventLoops
internal import PropertyTesting

/// Runs a sequence on one thread at a time. A batch runs the parts before and after its event.
final class SequenceRun {
  let sequence: ChaosSequence
  let options: ServerOptions
  let tokens: [String]
  /// The names of the tokens' owners in a token file and in a log: the SHA-256 in hexadecimal.
  let owners: [String]
  private(set) var violation: Violation?
  private(set) var transcript: [String] = []
  private(set) var coverage = ChaosCoverage()
  var tally = ChaosTally()
  /// The ports of the servers.
  var ports: [UInt16] = []
  var streams: [StreamModel] = []
  var uploads: [UploadModel] = []
  /// An empty upload of each token while quotas are verified, because an account lasts as long as its owner has an
  /// upload.
  private(set) var anchors: [UploadModel] = []
  /// The connection of each token to each server, kept for its next request.
  var kept: [[ChaosConnection?]] = []
  /// Chooses the server of each request.
  var servers: SplitMix64
  /// The request that is active during the event.
  private var pending: Call?
  /// Whether the server is being stopped, so that a request may stay unanswered.
  private(set) var isStopping = false

  init(_ sequence: ChaosSequence, _ options: ServerOptions, tokens: [String]) {
    (self.sequence, self.options, self.tokens) = (sequence, options, tokens)
    owners = tokens.map { Digest(.sha256, of: Array($0.utf8).span.bytes).hexadecimal }
    servers = SplitMix64(state: sequence.seed ^ UInt64(sequence.index) &* 0xD1B5_4A32_D192_ED03)
    keepNoConnection()
  }

  /// An event may end an upload without refunding its bytes at once. If nothing is stored, nothing is counted.
  private var countsQuota: Bool { sequence.countsQuota && sequence.eventIndex == nil && isStored }

  var isStored: Bool { options.setting.storage != .discarding }
  var isLog: Bool { options.setting.storage.isLog }

  private func keepNoConnection() {
    kept = Array(repeating: Array(repeating: nil, count: options.setting.storage.serverCount), count: 2)
  }

  func note(_ line: String) { transcript.append(line) }

  /// Runs a part of the sequence. After a violation, nothing more runs.
  private func attempt(_ body: () throws(Violation) -> Void) {
    guard violation == nil else { return }
    do throws(Violation) { try body() } catch { violation = error }
  }

  func fail(_ kind: String, _ detail: String = "") -> Violation { Violation(kind: kind, detail: detail) }

  // MARK: Parts

  /// Runs the steps before the event, or all of them.
  func before() {
    attempt { () throws(Violation) in
      if countsQuota { try anchor() }
      for step in sequence.steps.prefix(sequence.eventIndex ?? sequence.steps.count) { try perform(step) }
      if let index = sequence.eventIndex { _ = try target(sequence.steps[index]) }
    }
  }

  /// When an idle upload's lifetime ends, so that a request can be sent at that moment.
  var deadline: MonotonicInstant? {
    guard let index = sequence.eventIndex, sequence.steps[index].operation == .expire else { return nil }
    guard let last = uploads.map(\.lastTouch).max() else { return nil }
    let delay = sequence.steps[index].delay - 1500
    return last + .seconds(options.maximumAge) + .microseconds(delay * 10)
  }

  /// Sends the request that is simultaneous with the event, or a part of it.
  func launch() {
    attempt { () throws(Violation) in
      guard let index = sequence.eventIndex else { return }
      let step = sequence.steps[index]
      coverage.add(
        ChaosCell(setting: options.setting, operation: step.operation, second: step.second, issuer: step.issuer))
      isStopping = step.operation != .expire
      note("event: \(step.operation.rawValue)")
      tally.struck[step.operation.rawValue, default: 0] += 1
      guard step.second != .none, let call = try second(step, beside: nil) else { return }
      pending = call
      connect(call)
      if case .within(let share) = step.interleaving, step.operation != .expire {
        call.connection?.send(call.request.bytes[..<call.request.end(at: share)])
      } else {
        call.connection?.send(call.request.bytes[...])
      }
    }
  }

  /// Sends the rest of that request, and reads its result.
  func collect() {
    attempt { () throws(Violation) in
      guard let index = sequence.eventIndex, let call = pending else { return }
      pending = nil
      if case .within(let share) = sequence.steps[index].interleaving, sequence.steps[index].operation != .expire {
        call.connection?.send(call.request.bytes[call.request.end(at: share)...])
      }
      finish(call)
      try judge([call])
    }
  }

  /// The server is back, or its uploads have been idle for their whole lifetime.
  func continued(on ports: [UInt16]) {
    self.ports = ports
    keepNoConnection()
    attempt { () throws(Violation) in
      isStopping = false
      guard let index = sequence.eventIndex else { return }
      struck(sequence.steps[index].operation)
      if sequence.steps[index].operation == .expire { try checkExpiry() }
      for upload in uploads { try settle(upload, probe: sequence.steps[index].probe) }
      for step in sequence.steps.dropFirst(index + 1) { try perform(step) }
    }
  }

  /// The last check of every upload before the server ends.
  func end() {
    attempt { () throws(Violation) in
      for upload in uploads { try settle(upload, probe: nil) }
      if countsQuota { try countQuota() }
      for anchor in anchors { send(query(.delete, token: anchor.token, anchor), nil, .afterFirst) }
    }
    keepNoConnection()
  }

  /// After the server's end.
  func check(_ directory: StoredFiles) {
    guard isStored else { return }
    attempt { () throws(Violation) in for stream in streams { try checkFiles(of: stream, in: directory) } }
  }

  /// After the end of all servers.
  func check(_ log: StoredLog) {
    attempt { () throws(Violation) in try checkMessages(in: log) }
  }

  /// Any other failure in the batch.
  func failed(_ violation: Violation) { attempt { () throws(Violation) in throw violation } }

  // MARK: Steps

  private func perform(_ step: ChaosStep) throws(Violation) {
    let upload = try target(step)
    let first = call(for: step.operation, step.detail, upload, creatingBeside: step.second.needsUpload)
    let second = try second(step, beside: first)
    note(
      "\(step.operation.rawValue)"
        + (step.second == .none ? "" : " with \(step.second.rawValue) by \(step.issuer.rawValue), \(step.interleaving)")
    )
    coverage.add(
      ChaosCell(setting: options.setting, operation: step.operation, second: step.second, issuer: step.issuer))
    send(first, second, step.interleaving)
    let calls = [first] + (second.map { [$0] } ?? [])
    try judge(calls, isOrdered: { if case .beforeFirst = step.interleaving { false } else { true } }())
    // With a log, the other uploads of a stream must be as they were.
    let touched = uploads.filter { upload in
      calls.contains { $0.upload === upload || $0.stream.stream === upload.stream.stream }
    }
    for upload in touched {
      if case .appendAtAnnounced = step.inspection, upload.isOpen, let exact = upload.exact {
        note("the offset \(exact) was announced")
        try probe(upload, step.probe)
      } else if case .headOnly = step.inspection {
        try settle(upload, probe: nil)
      } else {
        try settle(upload, probe: step.probe)
      }
    }
  }

  /// The upload that a step is about, created if necessary.
  private func target(_ step: ChaosStep) throws(Violation) -> UploadModel? {
    if let open = uploads.last(where: { $0.isOpen && $0.token == 0 }) { return open }
    if step.takesEnded, let last = uploads.last(where: { $0.token == 0 }) { return last }
    guard step.operation != .create || step.second.needsUpload else { return nil }
    var detail = step.detail
    (detail.drop, detail.digest, detail.hole, detail.completes) = (nil, .none, 0, false)
    let call = create(detail, token: 0, newStream())
    note("a new upload")
    send(call, nil, .afterFirst)
    try judge([call])
    guard let upload = uploads.last, upload.isOpen else { throw fail("a creation made no upload", call.outcome.text) }
    return upload
  }

  private func anchor() throws(Violation) {
    for token in 0...1 {
      let call = create(RequestDetail(), token: token, newStream())
      send(call, nil, .afterFirst)
      try judge([call])
      if let upload = uploads.popLast() { anchors.append(upload) }
    }
  }

  func newStream() -> StreamModel {
    // A prime apart, so that no two streams have the same bytes at the same offset.
    let start = UInt64(bitPattern: Int64(sequence.index)) &* 7919 &+ UInt64(streams.count) &* 4003
    // The sequences of a batch share a log, and an upload without its first message has only this ID.
    let stream = StreamModel(
      stem: "k\(sequence.index)", id: "k\(sequence.index)s\(streams.count)c\(sequence.copy)", type: streams.count % 2,
      content: [ChaosBytes(shift: start % 65_521), ChaosBytes(shift: (start &+ 1013) % 65_521)])
    streams.append(stream)
    return stream
  }

  /// The first request.
  private func call(
    for operation: Operation, _ detail: RequestDetail, _ upload: UploadModel?, creatingBeside: Bool
  ) -> Call {
    switch (operation, upload) {
    case (.append, let upload?): append(detail, token: 0, upload, completes: false)
    case (.complete, let upload?): append(detail, token: 0, upload, completes: true)
    case (.head, let upload?): query(.head, token: 0, upload)
    case (.delete, let upload?): query(.delete, token: 0, upload)
    // A creation that is simultaneous with a request to an upload belongs to the same stream. Otherwise the two would
    // be unrelated.
    case (_, let upload?) where creatingBeside || detail.isChunked: create(detail, token: 0, upload.stream)
    default: create(detail, token: 0, newStream())
    }
  }

  /// The simultaneous request.
  private func second(_ step: ChaosStep, beside first: Call?) throws(Violation) -> Call? {
    let token = step.issuer == .sameToken ? 0 : 1
    let upload = first?.upload ?? uploads.last { $0.isOpen && $0.token == 0 } ?? uploads.last { $0.token == 0 }
    let stream = first?.stream ?? upload?.stream ?? newStream()
    var detail = step.secondDetail
    // If the stream may be released meanwhile, the other token may begin it again with its own bytes.
    if !isStored || step.operation == .delete || step.operation == .expire { detail.guessesRight = false }
    switch (step.second, upload) {
    case (.none, _): return nil
    case (.createSameStream, _): return create(detail, token: token, stream)
    case (.createSameName, _): return create(detail, token: token, stream, otherType: true)
    case (.plain, _): return plain(detail, token: token, stream)
    case (.append, let upload?): return append(detail, token: token, upload, completes: false)
    case (.complete, let upload?): return append(detail, token: token, upload, completes: true)
    case (.head, let upload?): return query(.head, token: token, upload)
    case (.delete, let upload?): return query(.delete, token: token, upload)
    default: throw fail("the sequence has no upload for \(step.second.rawValue)")
    }
  }

  /// The effect of an event on the known state.
  private func struck(_ event: Operation) {
    // The next server must honour the last reported offset. With a log, this also holds if its broker was killed, which
    // loses no acknowledged message (docs/scaling.md, "Losses by failure": a broker's process is killed).
    if !isStored || event == .expire || event == .powerCut && !isLog { for upload in uploads { upload.exact = nil } }
    guard event != .expire, !isLog else { return }
    if !isStored {
      for upload in uploads { upload.phase = .lost }
      for stream in streams { stream.reset() }
      return
    }
    guard event == .powerCut else { return }
    // A removed upload may be back, except that with durability `always`, a deleted one may not.
    for upload in uploads where upload.phase == .deleted || upload.mayBeDeleted {
      upload.stream.mayHaveLost = true
      if upload.phase == .deleted, options.setting.durability != "always" {
        (upload.phase, upload.mayBeGone) = (.open, true)
      }
    }
    guard options.setting.durability != "always" else { return }
    for upload in uploads where upload.isOpen || options.setting.durability == "none" {
      upload.mayBeGone = true
      upload.stream.mayHaveLost = true
    }
    for upload in uploads where !upload.isOpen {
      // The record of a finished upload may be outdated.
      upload.mayBeGone = true
    }
    for stream in streams where options.setting.durability == "none" || stream.completeEnd == nil {
      stream.mayHaveLost = true
    }
  }
}
