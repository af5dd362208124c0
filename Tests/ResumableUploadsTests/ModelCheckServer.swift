// The server's state machine with only a disk: does in memory what its shell does, one event after another.

import HTTPMessages
import PropertyTesting

@testable import ResumableUploads

/// A faulty server, in which the checker must find the fault. This proves that it can.
enum Sabotage: CaseIterable {
  /// The server announces an offset before it has kept the bytes.
  case announcesEarly
  /// After a restart the last byte is missing without any report.
  case losesOnRestart
  /// An older request may still append after a newer one has taken over.
  case letsOldRequestsAppend
  /// The server appends a PATCH at any offset.
  case ignoresOffsets
  /// HEAD returns the offset of the disk instead of the offset at which the next PATCH must begin.
  case tellsOldOffset
  /// The acknowledgement of a roll-over does not wait for the disk.
  case acknowledgesBeforeDisk
}

struct ModelServer {
  struct Resource {
    let url: String
    /// The stream offset of its first byte, as the client stated it.
    let base: UInt64
    var state: UploadResourceState
    var bytes: [UInt8] = []
    /// How many of its bytes would survive a power failure, now and after the sync that is under way.
    var synced = 0
    var syncing: Int?
    /// The exchange that carries the state's transfer.
    var transfer: (number: Int, exchange: Int, version: InteropVersion, isCreation: Bool)?
    /// Whether the handler has the whole representation and is preparing its response.
    var isResponding = false
    /// The offset in the last answer to HEAD, until something touches the resource.
    var promised: UInt64?
    /// Whether its handler has received everything and has answered. The resource may go, but the result stays.
    var wasComplete = false
    /// The largest offset announced since the server started. No later one may be smaller.
    var told: UInt64 = 0
  }

  /// An action that waits until the disk has this much of a resource.
  private struct Pending {
    var exchange: Int
    var resource: Int
    var count: Int
    /// The answer to send; nil if the handler may begin instead.
    var answer: ServerAnswer?
  }

  private(set) var resources: [Resource] = []
  private var pending: [Pending] = []
  private var output: [(exchange: Int, message: Downstream)] = []
  private let limits: UploadLimits
  let awaitsDisk: Bool
  private let joinsParts: Bool
  private let pattern: OffsetPattern
  private let sabotage: Sabotage?
  /// The first violation of an invariant, if there was one.
  private(set) var violation: String?

  init(
    limits: UploadLimits, awaitsDisk: Bool, joinsParts: Bool, pattern: OffsetPattern, sabotage: Sabotage?
  ) {
    (self.limits, self.awaitsDisk, self.joinsParts) = (limits, awaitsDisk, joinsParts)
    (self.pattern, self.sabotage) = (pattern, sabotage)
  }

  /// The messages that the server has to send since the last call.
  mutating func takeOutput() -> [(exchange: Int, message: Downstream)] {
    defer { output = [] }
    return output
  }

  /// Whether the server may still answer this exchange without another event from the client.
  func owes(_ exchange: Int) -> Bool {
    pending.contains { $0.exchange == exchange }
      || resources.contains { $0.isResponding && $0.transfer?.exchange == exchange }
  }

  /// The exchange in progress on the resource of `request`. All that has arrived of it is processed first.
  func exchangeAtWork(_ request: ModelRequest) -> Int? {
    index(request.url).flatMap { resources[$0].transfer?.exchange }
  }

  private func index(_ url: String?) -> Int? { url.flatMap { url in resources.firstIndex { $0.url == url } } }

  // MARK: Messages

  mutating func receive(_ message: Upstream, on exchange: Int) {
    switch message {
    case .head(let request): received(request, exchange)
    case .bytes(let bytes): received(bytes, exchange)
    case .end: contentEnded(exchange)
    case .closed:
      pending.removeAll { $0.exchange == exchange && $0.answer != nil }
      guard let index = transferring(exchange), let transfer = resources[index].transfer else { return }
      // All bytes have arrived. Processing continues for a client that asks for the response.
      resources[index].state.ended(transfer.number)
      resources[index].transfer = nil
    }
  }

  private func transferring(_ exchange: Int) -> Int? {
    resources.firstIndex { $0.transfer?.exchange == exchange }
  }

  private mutating func received(_ request: ModelRequest, _ exchange: Int) {
    let summary = RequestSummary(
      method: request.method, target: request.url == nil ? .other : .uploadResource, fields: request.fields,
      content: request.content)
    let asked = ServerRequest(summary)
    switch asked {
    case .plain: violation = "the client sent a request that asks nothing of the protocol: \(request)"
    case .discover(let version):
      output.append((exchange, .final(.discovered(limits, version, allow: "POST, OPTIONS"))))
    case .create(let transfer): create(transfer, request, exchange)
    case .refuse(let refusal, let version): refuse(refusal, version, nil, exchange)
    case .retrieve(let version), .cancel(let version), .discoverResource(let version):
      guard let index = index(request.url) else { return refuse(.unknownResource, version, nil, exchange) }
      ask(asked, version, index, exchange)
    case .append(let transfer):
      guard let index = index(request.url) else { return refuse(.unknownResource, transfer.version, nil, exchange) }
      append(transfer, index, exchange)
    }
  }

  private mutating func create(_ transfer: UploadTransferRequest, _ request: ModelRequest, _ exchange: Int) {
    let state: UploadResourceState
    do throws(UploadRefusal) {
      state = try UploadResourceState(creating: transfer, limits: limits, awaitsDisk: awaitsDisk)
    } catch {
      return refuse(error, transfer.version, nil, exchange)
    }
    // The record is on the disk before anybody learns of the resource, so a restart finds it.
    let base = request.fields["Stream-Offset"].flatMap { UInt64($0) } ?? 0
    resources.append(Resource(url: "http://server/.uploads/\(resources.count)", base: base, state: state))
    let index = resources.count - 1
    resources[index].transfer = (state.transfer?.number ?? 0, exchange, transfer.version, true)
    if var fields = ServerAnswer.announcement(standing(index), transfer.version) {
      addStreamID(&fields)
      output.append((exchange, .interim(fields)))
    }
  }

  private func addStreamID(_ fields: inout HeaderFields) { if joinsParts { fields.append("Stream-ID", "stream") } }

  private mutating func ask(_ asked: ServerRequest, _ version: InteropVersion, _ index: Int, _ exchange: Int) {
    do throws(UploadRefusal) {
      if case .cancel = asked {
        if try resources[index].state.deactivate(.cancelled) != nil { disconnect(index) }
        return output.append((exchange, .final(.cancelled(version))))
      }
      if try resources[index].state.retrieve() != nil { disconnect(index) }
    } catch {
      return refuse(error, version, index, exchange)
    }
    var standing = standing(index)
    if sabotage == .tellsOldOffset { standing.offset = UInt64(resources[index].synced) }
    if standing.offset < resources[index].told {
      violation = "\(resources[index].url) is at \(standing.offset) and reported \(resources[index].told) (Offset)"
    }
    answer(.retrieved(standing, version), index, exchange)
    resources[index].promised = standing.offset
  }

  private mutating func append(_ request: UploadTransferRequest, _ index: Int, _ exchange: Int) {
    let promised = resources[index].promised
    resources[index].promised = nil
    var request = request
    if sabotage == .ignoresOffsets { request.offset = resources[index].state.offset }
    switch resources[index].state.append(request) {
    case .begin(let former), .awaitResponse(let former):
      if former != nil { disconnect(index) }
      let number = resources[index].state.transfer?.number ?? 0
      resources[index].transfer = (number, exchange, request.version, false)
      // Tells the client that the offset matched, if this may be announced already.
      if !awaitsDisk || resources[index].state.durable == resources[index].state.offset {
        tellProgress(index, again: true)
      }
    case .replay:
      output.append((exchange, .final(response(index, request.version))))
    case .invalidate(let refusal, let former):
      if former != nil { disconnect(index) }
      refuse(refusal, request.version, index, exchange)
    case .refuse(let refusal):
      if case .mismatchingOffset(_, let provided) = refusal, provided == promised {
        violation = "the offset \(provided) that HEAD received is refused, and nothing has come between (Concurrency)"
      }
      refuse(refusal, request.version, index, exchange)
    }
  }

  private mutating func received(_ bytes: [UInt8], _ exchange: Int) {
    var found = transferring(exchange)
    if found == nil, sabotage == .letsOldRequestsAppend { found = resources.indices.last }
    guard let index = found, let transfer = resources[index].transfer else { return }
    let intake = resources[index].state.received(UInt64(bytes.count), by: transfer.number)
    keep(bytes.prefix(Int(intake.count)), index)
    resources[index].state.kept(intake.count)
    if let refusal = intake.refusal {
      resources[index].state.ended(transfer.number)
      resources[index].transfer = nil
      refuse(refusal, transfer.version, index, exchange)
    }
  }

  private mutating func keep(_ bytes: some Collection<UInt8>, _ index: Int) {
    for byte in bytes {
      let offset = resources[index].base + UInt64(resources[index].bytes.count)
      if byte != pattern[offset] {
        violation = "\(resources[index].url) keeps at stream offset \(offset) a byte of elsewhere (invariant 1)"
      }
      resources[index].bytes.append(byte)
    }
    resources[index].promised = bytes.isEmpty ? resources[index].promised : nil
  }

  private mutating func contentEnded(_ exchange: Int) {
    guard let index = transferring(exchange), let transfer = resources[index].transfer else { return }
    switch resources[index].state.contentEnded(transfer.number) {
    case .ignore: break
    case .acknowledge:
      resources[index].transfer = nil
      var acknowledgement: ServerAnswer =
        transfer.isCreation
        ? .created(standing(index), transfer.version) : .appended(standing(index), transfer.version)
      if transfer.isCreation { addStreamID(&acknowledgement.fields) }
      answer(acknowledgement, index, exchange)
    case .replay:
      resources[index].transfer = nil
      output.append((exchange, .final(response(index, transfer.version))))
    case .process: whenDurable(Pending(exchange: exchange, resource: index, count: resources[index].bytes.count))
    case .refuse(let refusal):
      resources[index].transfer = nil
      refuse(refusal, transfer.version, index, exchange)
    }
  }

  // MARK: Answers

  private func standing(_ index: Int) -> ServerAnswer.Standing {
    let resource = resources[index]
    return .init(
      offset: resource.state.offset + (sabotage == .announcesEarly ? 1 : 0), length: resource.state.length,
      isComplete: resource.state.phase == .complete,
      limits: limits, location: resource.url)
  }

  private func response(_ index: Int, _ version: InteropVersion) -> ServerAnswer {
    ServerAnswer(200, ServerAnswer.completedFields(version, offset: resources[index].state.offset))
  }

  private mutating func refuse(_ refusal: UploadRefusal, _ version: InteropVersion, _ index: Int?, _ exchange: Int) {
    let answer = ServerAnswer.refused(refusal, version, limits: limits, standing: index.map(standing))
    if let index { self.answer(answer, index, exchange) } else { output.append((exchange, .final(answer))) }
  }

  /// Answers once the bytes that the answer reports are on the disk.
  private mutating func answer(_ answer: ServerAnswer, _ index: Int, _ exchange: Int) {
    let pending = Pending(exchange: exchange, resource: index, count: resources[index].bytes.count, answer: answer)
    if sabotage == .acknowledgesBeforeDisk { perform(pending) } else { whenDurable(pending) }
  }

  private mutating func whenDurable(_ item: Pending) {
    if !awaitsDisk || resources[item.resource].synced >= item.count { perform(item) } else { pending.append(item) }
  }

  private mutating func perform(_ item: Pending) {
    guard let answer = item.answer else {
      resources[item.resource].isResponding = resources[item.resource].state.phase == .processing
      return
    }
    check(answer.fields, item.resource)
    output.append((item.exchange, .final(answer)))
  }

  /// Checks invariant 3 for each message that leaves the server.
  private mutating func check(_ fields: HeaderFields, _ index: Int) {
    guard let offset = UploadFields.offset(fields) else { return }
    let resource = resources[index]
    let kept = awaitsDisk ? resource.synced : resource.bytes.count
    if offset > UInt64(kept) { violation = "\(resource.url) reports \(offset) and has kept \(kept) (invariant 3)" }
    resources[index].told = max(resources[index].told, offset)
  }

  private mutating func disconnect(_ index: Int) {
    guard let transfer = resources[index].transfer else { return }
    resources[index].transfer = nil
    pending.removeAll { $0.exchange == transfer.exchange && $0.answer != nil }
    output.append((transfer.exchange, .closed))
  }

  // MARK: What happens by itself

  func canStartSync(_ index: Int) -> Bool {
    awaitsDisk && resources[index].syncing == nil && resources[index].synced < resources[index].bytes.count
  }

  mutating func startSync(_ index: Int) { resources[index].syncing = resources[index].bytes.count }

  mutating func endSync(_ index: Int) {
    guard let count = resources[index].syncing else { return }
    resources[index].syncing = nil
    resources[index].synced = count
    resources[index].state.synced(to: UInt64(count))
    let ready = pending.filter { $0.resource == index && $0.count <= count }
    pending.removeAll { $0.resource == index && $0.count <= count }
    for item in ready { perform(item) }
  }

  mutating func tellProgress(_ index: Int, again: Bool = false) {
    // A client that requests the response again gets it without interim ones.
    guard let transfer = resources[index].transfer, resources[index].state.phase != .complete else { return }
    let offset = again ? resources[index].state.announceOffset() : resources[index].state.announceProgress()
    guard let offset, let fields = ServerAnswer.progress(offset, transfer.version) else { return }
    check(fields, index)
    output.append((transfer.exchange, .interim(fields)))
  }

  /// The handler responds, either after it has received everything or early.
  mutating func respond(_ index: Int) {
    resources[index].isResponding = false
    let transfer = resources[index].transfer
    guard resources[index].state.phase == .processing || resources[index].state.phase == .incomplete else { return }
    let number = resources[index].state.responded()
    resources[index].transfer = nil
    guard let transfer, transfer.number == number else { return }
    answer(response(index, transfer.version), index, transfer.exchange)
  }

  mutating func expire(_ index: Int) {
    resources[index].wasComplete = resources[index].wasComplete || resources[index].state.phase == .complete
    // An inactive resource stays as it is.
    _ = try? resources[index].state.deactivate(.expired)
    disconnect(index)
  }

  /// The process or the machine dies. A part of the bytes that are not on the disk is lost.
  mutating func restart(isPowerFailure: Bool, _ random: inout SplitMix64) {
    pending = []
    for index in resources.indices {
      var resource = resources[index]
      (resource.transfer, resource.syncing, resource.isResponding, resource.promised) = (nil, nil, false, nil)
      // A complete upload is on the disk, whatever the durability.
      if isPowerFailure, resource.state.phase != .complete {
        resource.bytes.removeLast(Int.random(in: 0...resource.bytes.count - resource.synced, using: &random))
      }
      if sabotage == .losesOnRestart, !resource.bytes.isEmpty { resource.bytes.removeLast() }
      // A server that does not wait for the disk may also forget the offsets that it announced.
      let isForgotten = isPowerFailure && !awaitsDisk && random.chance(50)
      if isForgotten { resource.told = min(resource.told, UInt64(resource.bytes.count)) }
      // A response that was not stored is made again when a client completes the upload again.
      let phase = resource.state.phase == .processing ? .incomplete : resource.state.phase
      resource.synced = resource.bytes.count
      resource.state = UploadResourceState(
        restoring: phase, offset: UInt64(resource.bytes.count), promised: sabotage == nil ? resource.told : 0,
        synced: UInt64(resource.bytes.count), length: random.chance(50) ? resource.state.length : nil, limits: limits,
        awaitsDisk: awaitsDisk)
      resources[index] = resource
    }
  }
}
