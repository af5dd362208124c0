// Tests the checker of cluster runs: it accepts correct histories, and finds each kind of wrong answer.

import ClusterChaosTesting
import PropertyTesting
import Testing

@Suite("The checker of upload histories")
struct HistoryCheckerTests {
  private typealias Operation = UploadHistory.Operation
  private typealias Kind = HistoryViolation.Kind

  private static func append(
    _ start: UInt64, _ sent: UInt64, _ times: ClosedRange<Int64>, status: Int? = 204, offset: UInt64? = nil,
    completes: Bool = false, progress: [(Int64, UInt64)] = []
  ) -> Operation {
    var operation = Operation(.append(at: start, completes: completes), called: times.lowerBound)
    (operation.sent, operation.isWhole) = (sent, true)
    operation.progress = progress.map { .init(time: $0.0, offset: $0.1, sent: sent) }
    operation.answer = status.map { status in
      .init(time: times.upperBound, status: status, offset: offset ?? (status < 300 ? start + sent : nil))
    }
    return operation
  }

  private static func head(
    _ offset: UInt64, _ times: ClosedRange<Int64>, status: Int = 204, isComplete: Bool? = false
  ) -> Operation {
    var operation = Operation(.head, called: times.lowerBound)
    operation.answer = .init(
      time: times.upperBound, status: status, offset: status < 300 ? offset : nil, isComplete: isComplete)
    return operation
  }

  private static func kinds(_ operations: [Operation], finalLength: UInt64? = nil) -> Set<Kind> {
    Set(HistoryChecker.violations(in: UploadHistory(operations), finalLength: finalLength).map(\.kind))
  }

  @Test("servers that place each message after the previous one are correct", arguments: Seed.several(300))
  func simulated(seed: Seed) {
    let upload = SimulatedUpload(seed: seed.value, steps: 200)
    let found = HistoryChecker.violations(in: upload.history, finalLength: upload.length)
    #expect(found == [], "\(found)")
  }

  @Test("a wrong offset in a response of such a history is detected", arguments: Seed.several(100))
  func mutated(seed: Seed) throws {
    // An incomplete one with some bytes.
    let uploads = (0..<100).lazy.map { SimulatedUpload(seed: seed.value &+ $0, steps: 200) }
    let upload = try #require(uploads.first { $0.length >= 50 && !$0.isComplete })
    var history = upload.history
    // The last append is acknowledged, so that only one offset is correct in the answer after it.
    let (end, length) = ((history.operations.compactMap { $0.answer?.time }.max() ?? 0) + 1000, upload.length + 50)
    history.operations.append(Self.append(upload.length, 50, end...end + 1))
    history.operations.append(Self.head(length, end + 2...end + 3, isComplete: nil))
    #expect(HistoryChecker.violations(in: history, finalLength: length) == [])
    var random = seed.generator
    let last = history.operations.indices.last ?? 0
    for wrong in [length - UInt64.random(in: 1...50, using: &random), length + 1] {
      var changed = history
      changed.operations[last].answer?.offset = wrong
      #expect(HistoryChecker.violations(in: changed, finalLength: length) != [])
    }
  }

  @Test("consecutive appends, a lost response, and a HEAD with the offset are correct")
  func inOrder() {
    let first = [Self.append(0, 10, 0...10, status: 201), Self.append(10, 10, 20...30)]
    #expect(Self.kinds(first, finalLength: 20) == [])
    let lost = first + [Self.append(20, 50, 40...90, status: nil, progress: [(50, 30)])]
    for offset: UInt64 in [30, 45, 70] {
      let told = lost + [Self.head(offset, 100...110), Self.append(offset, 5, 120...130)]
      #expect(Self.kinds(told, finalLength: offset + 5) == [])
    }
    // Two concurrent appends. The loser is refused with the offset that the winner has reached.
    let race = [
      Self.append(0, 0, 0...10), Self.append(0, 10, 20...40), Self.append(0, 7, 20...40, status: 409, offset: 10),
    ]
    #expect(Self.kinds(race, finalLength: 10) == [])
    // A delayed request begins after others have already asked.
    let late = [Self.append(0, 10, 0...10), Self.append(10, 10, 20...90), Self.head(10, 30...40)]
    #expect(Self.kinds(late, finalLength: 20) == [])
    let complete = [
      Self.append(0, 10, 0...10, completes: true), Self.head(10, 20...30, isComplete: true),
      Self.append(10, 0, 40...50, completes: true),
    ]
    #expect(Self.kinds(complete, finalLength: 10) == [])
  }

  @Test("an append after a hole is detected")
  func hole() {
    #expect(Self.kinds([Self.append(0, 10, 0...10), Self.append(11, 5, 20...30)]).contains(.hole))
    // The bytes that an unanswered request may have appended are limited.
    let broken = Self.append(10, 5, 20...25, status: nil)
    #expect(Self.kinds([Self.append(0, 10, 0...10), broken, Self.append(16, 5, 30...40)]).contains(.hole))
    #expect(Self.kinds([Self.append(0, 10, 0...10), broken, Self.append(15, 5, 30...40)]) == [])
  }

  @Test("bytes from two requests are detected")
  func overlap() {
    let first = Self.append(0, 10, 0...100)
    #expect(Self.kinds([first, Self.append(0, 7, 20...90)]).contains(.overlap))
    #expect(Self.kinds([first, Self.append(5, 20, 20...90)]).contains(.overlap))
    // Also if only one of them was answered.
    #expect(Self.kinds([first, Self.append(0, 7, 20...90, status: nil, progress: [(30, 7)])]).contains(.overlap))
  }

  @Test("acknowledged bytes that a HEAD, a 409 or the end lacks are detected")
  func lost() {
    let appends = [Self.append(0, 10, 0...10), Self.append(10, 10, 20...60, status: nil, progress: [(40, 15)])]
    for offset: UInt64 in [10, 14] {
      #expect(Self.kinds(appends + [Self.head(offset, 50...55)]).contains(.lostBytes))
      // The HEAD was under way during the acknowledgement.
      #expect(!Self.kinds(appends + [Self.head(offset, 30...55)]).contains(.lostBytes))
    }
    #expect(Self.kinds([appends[0], Self.append(0, 1, 20...30, status: 409, offset: 9)]).contains(.lostBytes))
    #expect(Self.kinds(appends, finalLength: 14).contains(.lostBytes))
    #expect(Self.kinds([appends[0], Self.append(10, 10, 20...30, offset: 15)]).contains(.lostBytes))
    // Two HEADs, one after the other.
    let unanswered = [appends[0], Self.append(10, 10, 20...25, status: nil)]
    #expect(Self.kinds(unanswered + [Self.head(18, 30...40), Self.head(12, 50...60)]).contains(.lostBytes))
  }

  @Test("an offset that no request had reached is detected")
  func unsent() {
    let first = Self.append(0, 10, 0...10)
    #expect(Self.kinds([first, Self.head(11, 20...30)]).contains(.unsentBytes))
    #expect(Self.kinds([first, Self.append(10, 5, 50...60), Self.head(15, 20...30)]).contains(.unsentBytes))
    #expect(Self.kinds([first, Self.append(10, 5, 20...30, status: nil, progress: [(25, 16)])]).contains(.unsentBytes))
    #expect(Self.kinds([first], finalLength: 11).contains(.unsentBytes))
  }

  @Test("a 409 without a reason is detected")
  func conflict() {
    let first = Self.append(0, 10, 0...10)
    #expect(Self.kinds([first, Self.append(10, 5, 20...30, status: 409, offset: 10)]).contains(.unjustifiedConflict))
    let unnamed = Self.append(10, 5, 20...30, status: 409)
    #expect(Self.kinds([first, unnamed, Self.head(10, 40...50)]).contains(.unjustifiedConflict))
    #expect(Self.kinds([first, unnamed, Self.append(10, 5, 25...40)]) == [])
  }

  @Test("an append that continues after a HEAD received an offset is detected")
  func takenOver() {
    let first = Self.append(0, 10, 0...10)
    let head = Self.head(12, 40...50)
    let stray = Self.append(10, 10, 20...90, status: nil, progress: [(30, 12), (60, 15)])
    #expect(Self.kinds([first, stray, head]) == [.notTakenOver])
    // Or without an answer, and then the next one begins at a wrong offset.
    let silent = Self.append(10, 10, 20...90, status: nil, progress: [(30, 12)])
    #expect(Self.kinds([first, silent, head, Self.append(15, 5, 100...110)]).contains(.hole))
    #expect(Self.kinds([first, silent, head, Self.append(12, 5, 100...110)]) == [])
  }

  @Test(
    "a complete upload that grows or is reported as incomplete is detected, and so is one that no request completed")
  func completion() {
    let complete = Self.append(0, 10, 0...10, completes: true)
    #expect(Self.kinds([complete, Self.append(10, 5, 20...30)]).contains(.afterCompletion))
    #expect(Self.kinds([complete, Self.head(10, 20...30, isComplete: false)]) == [.wrongCompletion])
    #expect(Self.kinds([Self.append(0, 10, 0...10), Self.head(10, 20...30, isComplete: true)]) == [.wrongCompletion])
  }

  @Test("an upload that is gone without a cancellation is detected")
  func missing() {
    let first = Self.append(0, 10, 0...10)
    for status in [404, 410] {
      #expect(Self.kinds([first, Self.head(0, 20...30, status: status)]) == [.missing])
      let cancellation = Operation(.cancellation, called: 15)
      #expect(Self.kinds([first, cancellation, Self.head(0, 20...30, status: status)]) == [])
    }
  }
}
