// What the agent assumes about the network when nothing reports it.

import EventLoops
import Testing

@testable import TransferAgent

@Suite("The knowledge of the network")
struct NetworkKnowledgeTests {
  private let metered = NetworkConditions(isExpensive: true)
  private let start = MonotonicInstant(nanoseconds: 5_000_000_000)

  /// Lets watches end without a bus until the network no longer counts as metered, for at most an hour.
  ///
  /// - Returns: how long that has taken.
  private func fallBack(_ knowledge: inout NetworkKnowledge) -> Duration {
    var now = start
    // The connection to the bus ends first.
    var reaction = knowledge.endWatch(isBusMissing: false, now: now)
    #expect(reaction.conditions == nil)
    repeat {
      #expect(knowledge.last == metered && reaction.pause > .zero)
      now = now + reaction.pause
      reaction = knowledge.endWatch(isBusMissing: true, now: now)
    } while reaction.conditions == metered && now - start < .seconds(3600)
    #expect(reaction.conditions == NetworkConditions() && knowledge.last == nil)
    return now - start
  }

  @Test("without the bus, a metered network stays metered for a minute, and then counts as one without a bus")
  func missingBus() {
    var knowledge = NetworkKnowledge()
    knowledge.note(metered)
    let time = fallBack(&knowledge)
    #expect(time == .seconds(60))
    let next = knowledge.endWatch(isBusMissing: true, now: start + .seconds(61))
    #expect(next.conditions == NetworkConditions(), "and it stays that way")
  }

  @Test("a bus that returns begins the minute anew")
  func returnedBus() {
    var knowledge = NetworkKnowledge()
    knowledge.note(metered)
    let first = knowledge.endWatch(isBusMissing: true, now: start + .seconds(-50))
    #expect(first.conditions == metered)
    knowledge.note(metered)
    let time = fallBack(&knowledge)
    #expect(time == .seconds(60))
  }

  @Test("while nobody watches, the time without the bus counts too")
  func longAgo() {
    var knowledge = NetworkKnowledge()
    knowledge.note(metered)
    _ = knowledge.endWatch(isBusMissing: false, now: start)
    knowledge.forget()
    let next = knowledge.endWatch(isBusMissing: true, now: start + .seconds(60))
    #expect(next.conditions == NetworkConditions() && next.pause == .seconds(1))
  }

  @Test("a watch that ends for another reason changes nothing, however often that happens")
  func otherReason() {
    var knowledge = NetworkKnowledge()
    knowledge.note(metered)
    for second in 0..<1000 {
      let reaction = knowledge.endWatch(isBusMissing: false, now: start + .seconds(second))
      #expect(reaction.conditions == nil)
    }
    #expect(knowledge.last == metered)
  }

  @Test("what the agent does without knowing the network is reported once, and again after the network was known")
  func substitutes() {
    var knowledge = NetworkKnowledge()
    func reported(_ isBusMissing: Bool, after seconds: Int = 0) -> NetworkKnowledge.Substitute? {
      knowledge.endWatch(isBusMissing: isBusMissing, now: start + .seconds(seconds)).substitute
    }
    #expect(reported(false) == .waiting)
    #expect(reported(false) == nil)
    #expect(reported(true) == .unmetered)
    #expect(reported(false) == nil, "it stays unmetered")
    knowledge.forget()
    #expect(reported(true) == nil)
    knowledge.forget()
    #expect(reported(false) == .waiting)
    knowledge.note(metered)
    #expect(reported(true) == nil, "the last conditions hold")
    #expect(reported(true, after: 60) == .unmetered)
  }

  @Test("that NetworkManager does not answer is reported once, unless its last answer holds")
  func silence() {
    var knowledge = NetworkKnowledge()
    let reports = (0..<3).map { _ in knowledge.noteSilence() }
    let expected: [NetworkKnowledge.Substitute?] = [.waiting, nil, nil]
    #expect(reports == expected)
    let lost = knowledge.endWatch(isBusMissing: false, now: start).substitute
    #expect(lost == nil, "transfers wait as before")
    knowledge.note(metered)
    let known = knowledge.noteSilence()
    #expect(known == nil)
  }

  @Test("that NetworkManager does not answer any more is reported once after each answer")
  func silenceAfterAnswer() {
    var knowledge = NetworkKnowledge()
    let unknown = knowledge.noteSilenceAfterAnswer()
    #expect(unknown == nil)
    for _ in 0..<2 {
      knowledge.note(metered)
      let reports = (0..<3).map { _ in knowledge.noteSilenceAfterAnswer() }
      let expected: [NetworkConditions?] = [metered, nil, nil]
      #expect(reports == expected)
    }
  }

  @Test("if there never was a bus, nothing counts as metered, and the pauses before the next watch grow")
  func noBus() {
    var knowledge = NetworkKnowledge()
    var pauses: [Duration] = []
    for _ in 0..<11 {
      let reaction = knowledge.endWatch(isBusMissing: true, now: start)
      #expect(reaction.conditions == NetworkConditions())
      pauses.append(reaction.pause)
    }
    let expected: [Duration] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300].map { .seconds($0) }
    #expect(pauses == expected)
  }
}
