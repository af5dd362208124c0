// The permitted reactions of a stream to its answers: the model of the matrix.

import LiveStreaming

/// A violated claim.
package struct AnswerViolation: Sendable, CustomStringConvertible {
  /// Equal for equal kinds of faults.
  package var kind: String
  package var detail: String
  package var description: String { "\(kind): \(detail)" }
}

struct CaseJudgement {
  let plan: AnswerCase
  let trace: CaseTrace
  let stored: StoredStream
  let given: [(odd: OddReply, head: ReplyHead?, method: String)]
  let claims: Claims
  let leftUnread: Bool
  /// Requests that brought no bytes.
  let vainRequests: Int

  init(_ plan: AnswerCase, _ trace: CaseTrace, _ state: CaseServer.State) {
    (self.plan, self.trace, given) = (plan, trace, state.given)
    stored = state.stored.located(at: trace.starts)
    claims = state.claims
    (leftUnread, vainRequests) = (state.leftUnread, state.requests - 2 * state.progress)
  }

  /// The first violated claim.
  func violation() -> AnswerViolation? {
    if let first = trace.contradictions.first {
      return .init(kind: String(first.prefix { !$0.isNumber && $0 != ":" }), detail: first)
    }
    guard let summary = trace.summary else { return .init(kind: "no end", detail: "") }
    if let difference = stored.difference { return .init(kind: "wrong bytes at the server", detail: difference) }
    return figures(summary) ?? end(summary) ?? coverage(summary) ?? losses(summary) ?? effort()
  }

  // MARK: Figures

  private func figures(_ summary: StreamSummary) -> AnswerViolation? {
    let progress = summary.progress
    func fail(_ words: String) -> AnswerViolation {
      .init(kind: "the reports contradict each other", detail: "\(words): \(summary)")
    }
    if progress.captured != trace.captured { return fail("\(trace.captured) bytes were produced") }
    // The failure that ends a stream is reported by its end.
    let reported =
      summary.error == nil ? trace.outageCount...trace.outageCount : trace.outageCount...trace.outageCount + 1
    if !reported.contains(progress.outageCount) { return fail("\(trace.outageCount) outages were reported") }
    if summary.error == nil, progress.unsent != 0 { return fail("a complete stream has unsent bytes") }
    if summary.gaps < trace.gaps.count { return fail("\(trace.gaps.count) gaps were reported") }
    let lost = StoredStream.union(trace.gaps.map { $0.offset..<($0.offset + $0.length) }).map {
      $0.upperBound - $0.lowerBound
    }
    .reduce(0, +)
    // No request may have begun after the last gap.
    if progress.lost < lost { return fail("gaps of \(lost) bytes were reported") }
    if summary.error == nil, summary.missingAtServer == nil, progress.lost != lost {
      return fail("gaps of \(lost) bytes were reported")
    }
    return nil
  }

  // MARK: The end

  /// Statuses after which a client always tries again.
  private func isRetried(_ status: Int) -> Bool {
    switch status {
    case 408, 421, 423, 425, 429, 500, 502...504, 506...: true
    default: false
    }
  }

  private var isPlain: Bool { plan.cell.wire == .plain || trace.notSupported }

  private func end(_ summary: StreamSummary) -> AnswerViolation? {
    guard let error = summary.error else { return nil }
    func fail(_ words: String) -> AnswerViolation {
      .init(kind: "\(words) (\(error.kind.rawValue))", detail: "\(error.description)")
    }
    if error.description.isEmpty
      || error.description.unicodeScalars.contains(where: { $0.value < 0x20 || $0.value == 0x7F })
    {
      return fail("an error that cannot be printed")
    }
    switch error.kind {
    case .cancelled: return trace.orders.contains("cancel") ? nil : fail("cancelled by nobody")
    case .unreachable:
      if plan.isPermanent { return nil }
      // A plain file whose answer is lost each time, and a PUT that another one would replace.
      return isPlain && (plan.cell.source == .put || plan.method == "PUT") ? nil : fail("gave up without a limit")
    case .source, .overflow, .invalidRequest, .unfinished: return fail("a reason that is not there")
    case .insecureLocation where !plan.cell.route.isSecure: return fail("a reason that is not there")
    case .notTrusted where !given.contains(where: { $0.odd.isCertificate }): return fail("a reason that is not there")
    // If the limit is this long, and the server accepts the stream again.
    case .notPermitted where plan.refusalLimit == .seconds(600), .notTrusted where plan.refusalLimit == .seconds(600):
      return fail("a refusal has ended a stream before its time")
    case .notPermitted, .notTrusted, .refused, .protocolBroken, .http2NotSupported, .insecureLocation: break
    }
    if given.isEmpty { return fail("ended although every answer was as it should be") }
    if summary.progress.acknowledged > 0, !isPlain {
      return mayEndAcknowledged(error) ? nil : fail("an odd answer has ended a stream that was acknowledged")
    }
    return given.contains(where: mayEndAtStart)
      ? nil : fail("an answer that may come any time has ended a stream at its start")
  }

  /// 409, 410 and 413 are definite, and so is a failure to process content that was fully received. A refusal ends a
  /// stream if it lasts.
  private func mayEndAcknowledged(_ error: LiveStreamError) -> Bool {
    given.contains { odd, head, _ in
      if plan.isPermanent, case .refusal = odd.change { return [.notPermitted, .notTrusted].contains(error.kind) }
      guard let head else { return false }
      if [409, 410, 413].contains(head.status) { return true }
      if head.status >= 300, head.value("Upload-Complete") != nil { return true }
      // A server that always reports an upload as complete ends the stream.
      if plan.isPermanent, (200..<300).contains(head.status), head.value("Upload-Complete")?.contains("?1") == true {
        return error.kind == .protocolBroken
      }
      if plan.isPermanent, [401, 403, 407].contains(head.status) { return error.kind == .notPermitted }
      return false
    }
  }

  private func mayEndAtStart(_ odd: OddReply, _ head: ReplyHead?, _ method: String) -> Bool {
    switch odd.family {
    // A field that HTTP/2 does not permit breaks the response.
    case .status: head.map { !isRetried($0.status) || plan.usesHTTP2 && !$0.fields.isEmpty } ?? false
    case .missingField, .doubledField, .absurdField, .interim, .garbage: true
    case .early: true
    // The rest of the head may or may not be a valid head.
    case .cut: true
    case .broken, .never: plan.usesHTTP2
    case .late, .endlessBody: false
    // Without a time limit, a refusal at the start is final.
    case .refusal: plan.isPermanent || plan.refusalLimit == nil
    }
  }

  // MARK: Bytes

  /// Every byte of a complete stream is stored or reported as lost.
  private func coverage(_ summary: StreamSummary) -> AnswerViolation? {
    guard summary.error == nil else { return nil }
    if plan.cell.source == .put, isPlain {
      let isStored = stored.requests.contains { $0.isWhole && $0.offset == 0 && $0.bytes.count == Int(trace.captured) }
      return isStored || !claims.untrue(captured: trace.captured).isEmpty
        ? nil : .init(kind: "a file counts as stored and is not", detail: "\(trace.captured) bytes")
    }
    let gaps = trace.gaps.map { $0.offset..<($0.offset + $0.length) }
    // Bytes that a server reports as stored are not sent again.
    let replaces = isPlain && plan.method == "PUT" && !given.contains { $0.head?.value("Stream-Offset") != nil }
    if replaces, let replacement = stored.replacement {
      return .init(kind: "a request has replaced what was stored", detail: replacement)
    }
    let kept = replaces ? stored.rangesLeft : stored.ranges
    let excused = kept + gaps + claims.untrue(captured: trace.captured)
    let holes = StoredStream.holes(StoredStream.union(excused), end: trace.captured)
    guard let hole = holes.first else { return nil }
    // TCP has acknowledged bytes that such a server did not keep.
    let wasRead = !leftUnread && !given.contains { !$0.odd.keeps } && !(plan.cell.phase == .head && plan.cutsByReset)
    if isPlain, !wasRead || plan.method == "PUT" && !replaces { return nil }
    // A server that is too late for a time limit loses what its TCP had acknowledged and it had not read.
    if isPlain, holes.allSatisfy({ trace.timedOut.contains($0.upperBound) }) { return nil }
    // Bytes that the server has not confirmed are reported.
    if replaces, holes.reduce(0, { $0 + ($1.upperBound - $1.lowerBound) }) <= summary.unconfirmed { return nil }
    return .init(
      kind: "bytes are missing and nothing reports it",
      detail: "\(hole) of \(trace.captured), \(summary.progress.lost) reported as lost")
  }

  private func losses(_ summary: StreamSummary) -> AnswerViolation? {
    for (gap, captured) in zip(trace.gaps, trace.capturedAtGap) {
      switch gap.cause {
      case .bufferFull:
        if plan.cell.source != .mic { return .init(kind: "a source that can wait has lost bytes", detail: "\(gap)") }
        if captured - min(captured, gap.offset) < UInt64(trace.capacity) {
          return .init(
            kind: "bytes were discarded that the buffer had room for", detail: "\(gap), \(captured) captured")
        }
      case .serverLost:
        let isClaimed = claims.untrue(captured: captured).contains { $0.upperBound > gap.offset }
        if !isPlain, !isClaimed, !claims.understates {
          return .init(kind: "bytes count as lost by a server that has them", detail: "\(gap)")
        }
      }
    }
    if plan.cell.source == .put, summary.progress.lost > 0, summary.missingAtServer == nil {
      return .init(kind: "bytes of a file count as lost", detail: "\(summary.progress)")
    }
    return nil
  }

  /// No server is asked repeatedly without a pause.
  private func effort() -> AnswerViolation? {
    let milliseconds = Int(trace.duration / .milliseconds(1))
    let most = 60 + milliseconds / 4
    return vainRequests > most
      ? .init(kind: "too many requests", detail: "\(vainRequests) requests that brought nothing in \(milliseconds) ms")
      : nil
  }
}
