// Checks whether the requests to an upload can be ordered, each at one moment between its request and its answer, such
// that all answers of the servers are true.

/// Judges the history of one upload. A pure function: ``violations(in:finalLength:)``.
///
/// The state of an upload is its length, which only grows. So each answer limits the moment at which the length reached
/// some offset: an acknowledgement of `v` means "not later than now", and a HEAD that returns `v` adds "`v + 1` not
/// before this request began". A history is correct if moments that increase with the offset satisfy all limits, and if
/// each byte was added by one append that was under way. A request without an answer may have added any part of its
/// content, at any time after its beginning.
///
/// Every reported violation is real. If several unanswered requests could have added the same byte, the checker does
/// not try each choice, so it may accept a wrong history that only such a choice would reveal.
package struct HistoryChecker {
  /// - Parameter finalLength: the upload's length in the end, if it is known from elsewhere.
  /// - Returns: the violations, each once; empty for a history that is linearizable.
  package static func violations(in history: UploadHistory, finalLength: UInt64? = nil) -> [HistoryViolation] {
    var checker = HistoryChecker(history)
    checker.checkCompletion()
    checker.checkExistence()
    checker.cutAppendsThatWereTakenOver()
    checker.checkSequence()
    checker.checkTimes(finalLength)
    var seen: Set<HistoryViolation> = []
    return checker.found.filter { seen.insert($0).inserted }
  }

  /// An append, and the bytes that it may have added.
  private struct Append {
    var start: UInt64
    /// It has certainly added everything before this.
    var leastEnd: UInt64
    /// It may have added everything before this.
    var mostEnd: UInt64
    var operation: UploadHistory.Operation
    var completes: Bool
    var wasAccepted: Bool { operation.answer?.isSuccess == true }
    /// When a server had certainly begun to process it.
    var begun: Int64? {
      let first = operation.progress.first?.time
      return wasAccepted ? min(first ?? .max, operation.answer?.time ?? .max) : first
    }
  }

  /// A response to a client reported that the upload ends at `offset`, at a moment between the two times.
  private struct Observation {
    var offset: UInt64
    var called: Int64
    var answered: Int64
    var what: String
  }

  private let operations: [UploadHistory.Operation]
  private var appends: [Append] = []
  private var found: [HistoryViolation] = []

  private init(_ history: UploadHistory) {
    operations = history.operations.sorted { $0.called < $1.called }
    for operation in operations {
      guard case .append(let start, let completes) = operation.kind else { continue }
      append(operation, at: start, completes)
    }
  }

  private mutating func append(_ operation: UploadHistory.Operation, at start: UInt64, _ completes: Bool) {
    var append = Append(
      start: start, leastEnd: start, mostEnd: start + operation.sent, operation: operation, completes: completes)
    for progress in operation.progress {
      append.leastEnd = max(append.leastEnd, progress.offset)
      if progress.offset > start + progress.sent {
        violation(.unsentBytes, "\(progress.offset) of an append at \(start) that had sent \(progress.sent) bytes")
      }
    }
    if let answer = operation.answer {
      if answer.isSuccess {
        append.leastEnd = start + operation.sent
        if let offset = answer.offset, offset != append.leastEnd {
          violation(
            offset > append.leastEnd ? .unsentBytes : .lostBytes,
            "\(offset) in the answer to an append of \(start) to \(append.leastEnd)")
        }
      }
      // A refused append adds nothing if its offset is wrong, or if the upload does not exist.
      if [404, 409, 410].contains(answer.status), operation.progress.isEmpty { append.mostEnd = start }
    }
    append.mostEnd = max(append.mostEnd, append.leastEnd)
    appends.append(append)
  }

  private mutating func violation(_ kind: HistoryViolation.Kind, _ detail: String) {
    found.append(HistoryViolation(kind: kind, detail: detail))
  }

  // MARK: Complete operations

  /// The appends that have certainly completed the upload.
  private var completions: [Append] { appends.filter { $0.completes && $0.wasAccepted } }

  private mutating func checkCompletion() {
    // An append with bytes after the last request that completes the upload.
    if let completion = completions.first {
      let end = completion.leastEnd
      for append in appends where append.leastEnd > append.start && append.leastEnd > end {
        violation(.afterCompletion, "\(append.start) to \(append.leastEnd) of an upload that is complete at \(end)")
      }
    }
    let firstCompletion = completions.compactMap { $0.operation.answer?.time }.min() ?? .max
    for operation in operations where operation.kind == .head {
      guard let answer = operation.answer, answer.isSuccess, let isComplete = answer.isComplete else { continue }
      if !isComplete, operation.called > firstCompletion {
        violation(.wrongCompletion, "an incomplete upload after its completion was acknowledged")
      }
      if isComplete,
        !appends.contains(where: {
          $0.completes && $0.operation.called < answer.time && $0.operation.isWhole
            && ($0.mostEnd == answer.offset || answer.offset == nil)
        })
      {
        violation(.wrongCompletion, "a complete upload that nobody has completed")
      }
    }
  }

  private mutating func checkExistence() {
    let cancelled = operations.filter { $0.kind == .cancellation }.map(\.called).min() ?? .max
    for operation in operations {
      guard let answer = operation.answer, [404, 410].contains(answer.status), cancelled > answer.time else { continue }
      violation(.missing, "\(answer.status) to \(operation.kind)")
    }
  }

  /// A HEAD ends the appends that servers had begun to process before it.
  private mutating func cutAppendsThatWereTakenOver() {
    for head in operations where head.kind == .head {
      guard let answer = head.answer, answer.isSuccess, answer.isComplete != true, let offset = answer.offset else {
        continue
      }
      for index in appends.indices {
        guard let begun = appends[index].begun, begun < head.called, appends[index].mostEnd > offset else { continue }
        if appends[index].leastEnd > offset {
          // The time limits show whether the HEAD had to include these bytes.
          if !appends[index].operation.progress.contains(where: { $0.offset > offset && $0.time < head.called }) {
            violation(
              .notTakenOver, "an append at \(appends[index].start) continued beyond \(offset), reported to a HEAD")
          }
        } else {
          appends[index].mostEnd = offset
        }
      }
    }
  }

  // MARK: The sequence of the offsets

  /// Goes through the upload: where may it have ended, at some time, when an append began?
  private mutating func checkSequence() {
    /// The possible ends since the last certain append.
    var ends: [ClosedRange<UInt64>] = [0...0]
    var certainEnd: UInt64 = 0
    for append in appends.sorted(by: { ($0.start, $0.leastEnd) < ($1.start, $1.leastEnd) }) {
      let canBegin = ends.contains { $0.contains(append.start) }
      let isCertain = append.leastEnd > append.start
      guard isCertain || append.wasAccepted else {
        if canBegin, append.mostEnd > append.start { ends.append(append.start...append.mostEnd) }
        continue
      }
      if !canBegin {
        violation(
          append.start < certainEnd ? .overlap : .hole,
          "an append of \(append.start) to \(append.leastEnd), where the upload could end at \(ends)")
      }
      if isCertain {
        // Everything uncertain before has ended here.
        ends = [append.leastEnd...append.mostEnd]
        certainEnd = max(certainEnd, append.leastEnd)
      }
    }
  }

  // MARK: Times

  private var observations: [Observation] {
    operations.compactMap { operation in
      guard let answer = operation.answer, let offset = answer.offset else { return nil }
      switch operation.kind {
      case .head where answer.isSuccess:
        return Observation(offset: offset, called: operation.called, answered: answer.time, what: "HEAD")
      case .append where answer.status == 409:
        return Observation(offset: offset, called: operation.called, answered: answer.time, what: "409")
      default: return nil
      }
    }
  }

  /// Compares, for each offset, the latest "not before" below it with the earliest "not later than".
  private mutating func checkTimes(_ finalLength: UInt64?) {
    /// The upload contains more than `offset` bytes only from that time on.
    var notBefore: [(offset: UInt64, time: Int64, kind: HistoryViolation.Kind, what: String)] = []
    /// The upload contains `offset` bytes by then.
    var byThen: [(offset: UInt64, time: Int64, what: String)] = []
    for observation in observations {
      notBefore.append((observation.offset, observation.called, .lostBytes, "\(observation.what) said"))
      byThen.append((observation.offset, observation.answered, observation.what))
    }
    for append in appends {
      for progress in append.operation.progress { byThen.append((progress.offset, progress.time, "104")) }
      guard append.wasAccepted, let answer = append.operation.answer else { continue }
      byThen.append((append.leastEnd, answer.time, "\(answer.status)"))
      // At its beginning, the upload ended there.
      notBefore.append((append.start, append.operation.called, .overlap, "an append began at"))
    }
    if let finalLength {
      byThen.append((finalLength, .max - 1, "the end"))
      notBefore.append((finalLength, .max, .lostBytes, "in the end, there were"))
    }
    notBefore += arrivals(upTo: byThen.map(\.offset).max() ?? 0)
    checkConflicts(notBefore.map { ($0.offset, $0.time) }, byThen.map { ($0.offset, $0.time) })
    // Among several reasons with one time, the first one counts. Bytes that were never sent explain the most.
    notBefore.sort { ($0.offset, $0.kind == .unsentBytes ? 0 : 1) < ($1.offset, $1.kind == .unsentBytes ? 0 : 1) }
    byThen.sort { $0.offset < $1.offset }
    var next = 0
    var latest: (offset: UInt64, time: Int64, kind: HistoryViolation.Kind, what: String)?
    for bound in byThen {
      while next < notBefore.count, notBefore[next].offset < bound.offset {
        if notBefore[next].time > latest?.time ?? .min { latest = notBefore[next] }
        next += 1
      }
      guard let latest, latest.time > bound.time else { continue }
      violation(
        latest.kind,
        "\(latest.what) \(latest.offset), \(latest.time - bound.time) ns after \(bound.offset) (\(bound.what))")
    }
  }

  /// The earliest time at which the bytes after each offset can have been added: when a request with them began.
  private func arrivals(
    upTo end: UInt64
  ) -> [(offset: UInt64, time: Int64, kind: HistoryViolation.Kind, what: String)] {
    let points = Set(appends.flatMap { [$0.start, $0.leastEnd, $0.mostEnd] } + [0]).sorted()
    let certain = appends.filter { $0.leastEnd > $0.start }.sorted { $0.start < $1.start }
    let uncertain = appends.filter { $0.mostEnd > $0.leastEnd }
    return points.filter { $0 < end }.map { point in
      // A certain append takes precedence, because no other one has added these bytes.
      let owner = certain.last { $0.start <= point }.flatMap { $0.leastEnd > point ? $0 : nil }
      let time =
        owner?.operation.called
        ?? uncertain.filter { $0.start <= point && point < $0.mostEnd }.map(\.operation.called).min() ?? .max
      return (point, time, .unsentBytes, "nobody had sent what is behind")
    }
  }

  private mutating func checkConflicts(_ notBefore: [(UInt64, Int64)], _ byThen: [(UInt64, Int64)]) {
    let isCompleted = appends.contains { $0.completes && $0.operation.isWhole }
    for append in appends {
      guard let answer = append.operation.answer, answer.status == 409, !isCompleted else { continue }
      if answer.offset == append.start {
        violation(.unjustifiedConflict, "409 names \(append.start), where the append begins")
      }
      // Reached before the request, and not passed before the answer.
      let wasReached = append.start == 0 || byThen.contains { $0.0 >= append.start && $0.1 < append.operation.called }
      let wasNotPassed = notBefore.contains { $0.0 <= append.start && $0.1 > answer.time }
      if wasReached && wasNotPassed {
        violation(.unjustifiedConflict, "409 to an append at \(append.start), where the upload ended all the time")
      }
    }
  }
}
