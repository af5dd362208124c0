// Tests random orders of all events of an upload resource against a model that stores the bytes themselves.

import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("An upload resource in any order of events")
struct ServerModelTests {
  /// The bytes that the shell would keep. Each byte equals its offset in the representation.
  private struct Model {
    var kept: [UInt64] = []
    var uncounted = 0
    var synced = 0
    var announced: UInt64 = 0
    var retrieved: UInt64?
    var isOver = false
    /// Requests that may still be in progress for a client, each with the next byte that it would send.
    var clients: [(number: Int, cursor: UInt64, completes: Bool)] = []
  }

  @Test(
    "every byte is stored once and in order, offsets never decrease, the server accepts a retrieved offset, and ended uploads stay ended",
    arguments: Seed.several(4))
  func anyOrder(_ seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<400 { try run(&random) }
  }

  private func run(_ random: inout SplitMix64) throws {
    let awaitsDisk = random.chance(50)
    var limits = UploadLimits()
    if random.chance(20) { limits.maximumSize = 40 }
    if random.chance(20) { limits.maximumAppendSize = 15 }
    var creation = request(&random, offset: 0)
    creation.uploadLength = random.chance(20) ? UInt64.random(in: 0...40, using: &random) : nil
    guard var state = try? UploadResourceState(creating: creation, limits: limits, awaitsDisk: awaitsDisk) else {
      return
    }
    var model = Model()
    model.clients.append((1, 0, creation.completes))

    for _ in 0..<60 {
      let wasOver = state.isInactive
      switch Int.random(in: 0..<12, using: &random) {
      case 0...4:  // bytes of any earlier request, even late ones
        guard let client = model.clients.indices.randomElement(using: &random) else { break }
        let count = UInt64.random(in: 1...8, using: &random)
        let intake = state.received(count, by: model.clients[client].number)
        #expect(intake.count <= count && (state.phase == .incomplete || intake.count == 0))
        let stored = random.chance(90) ? intake.count : UInt64.random(in: 0...intake.count, using: &random)
        for _ in 0..<stored {
          model.kept.append(model.clients[client].cursor)
          model.clients[client].cursor += 1
        }
        state.kept(stored)
        if intake.refusal != nil { state.ended(model.clients[client].number) }
      case 5:  // the end of any of these requests
        guard let client = model.clients.randomElement(using: &random) else { break }
        let isActive = state.transfer?.number == client.number
        let (isCurrent, isRepeated) = (isActive && state.phase == .incomplete, isActive && state.phase == .complete)
        if isCurrent, state.transfer?.request.hasDigest == true {
          if random.chance(50) {
            state.contentVerified()
          } else {
            state.contentRefuted()
            model.kept.removeLast(model.kept.count - Int(state.keptCount))
            break
          }
        }
        let action = state.contentEnded(client.number)
        #expect((action == .ignore) == !(isCurrent || isRepeated) && (action == .replay) == isRepeated)
        if action == .process { #expect(client.completes && state.length == state.offset) }
      case 6:  // the connection of any of these requests breaks
        guard let client = model.clients.randomElement(using: &random) else { break }
        state.ended(client.number)
      case 7:
        let before = state.transfer?.number
        guard let ended = try? state.retrieve() else {
          #expect(state.isInactive || before == nil)
          if state.isInactive { break }
          model.retrieved = retrievable(&state)
          break
        }
        #expect(ended == before)
        model.retrieved = retrievable(&state)
      case 8, 9:  // an append at the announced offset, at the right one, or anywhere
        let offset =
          model.retrieved ?? (random.chance(60) ? state.offset : UInt64.random(in: 0...45, using: &random))
        let request = request(&random, offset: offset)
        let before = state
        switch state.append(request) {
        case .begin(let replaced):
          #expect(replaced == before.transfer?.number && offset == before.offset && before.phase == .incomplete)
          // The client sends the bytes again that did not count.
          model.kept.removeLast(model.kept.count - Int(state.keptCount))
          model.clients.append((state.transfer?.number ?? 0, offset, request.completes))
        case .awaitResponse:
          #expect(before.phase == .processing || before.phase == .complete && request.content == .unsized)
          #expect(request.completes && offset == before.offset)
          model.clients.append((state.transfer?.number ?? 0, offset, true))
        case .replay: #expect(before.phase == .complete && request.completes && request.content != .unsized)
        case .invalidate(let refusal, let ended):
          #expect(refusal == .inconsistentLength && ended == before.transfer?.number && state.isInactive)
          #expect(offset == before.offset && before.phase == .incomplete)
        case .refuse(let refusal):
          // A refusal does not affect the request in progress.
          #expect(state == before)
          if case .mismatchingOffset(let expected, _) = refusal {
            #expect(expected == before.offset && model.retrieved == nil)
          }
        }
        model.retrieved = nil
      case 10:
        model.synced = Int.random(in: model.synced...max(model.synced, Int(state.offset)), using: &random)
        state.synced(to: UInt64(model.synced))
        if let told = state.announceProgress() {
          #expect(told > model.announced)
          model.announced = told
        }
      default:
        if random.chance(8) { _ = try? state.deactivate(.cancelled) }
        if random.chance(20) { _ = state.responded() }
      }
      if state.transfer != nil { model.retrieved = model.retrieved.flatMap { $0 == state.offset ? $0 : nil } }
      // The kept bytes are those of the representation, each exactly once and in order.
      #expect(model.kept == (0..<UInt64(model.kept.count)).map { $0 })
      #expect(UInt64(model.kept.count) == state.keptCount)
      #expect(state.offset <= state.keptCount && state.announced <= state.offset && state.announced >= model.announced)
      if awaitsDisk { #expect(state.announced <= state.durable) }
      model.announced = state.announced
      if wasOver { #expect(state.isInactive && state.transfer == nil) }
    }
  }

  /// The announced offset, after all bytes are on the disk.
  private func retrievable(_ state: inout UploadResourceState) -> UInt64 {
    state.synced(to: state.offset)
    let offset = state.announceOffset()
    #expect(offset == state.offset)
    return offset
  }

  private func request(_ random: inout SplitMix64, offset: UInt64) -> UploadTransferRequest {
    let contents: [RequestSummary.Content] = [.unsized, .absent, .sized(UInt64.random(in: 0...20, using: &random))]
    var request = UploadTransferRequest(
      version: .newest, offset: offset, completes: random.chance(30),
      content: contents[Int.random(in: 0..<contents.count, using: &random)])
    request.hasDigest = random.chance(20)
    return request
  }
}
