// All upload resources of a server: found by their tokens, limited in number and bytes, forgotten when their time is over.

internal import EventLoops
internal import ResumableUploads

/// The table of upload resources and what all of them share. Only on the loop's thread.
final class UploadResources {
  let loop: EventLoop
  let store: any UploadRecords
  let worker: BackgroundWorker
  let durability: Durability
  let options: UploadServer.Configuration.Uploads
  let emit: (ServerEvent) -> Void
  /// The resource that each request is for: the router within.
  let router: RequestRouter
  let limits: UploadLimits
  /// How many records of uploads that are over there may be.
  private let finishedLimit: Int
  /// Whether a credential is valid now.
  private let isValid: ([UInt8]) -> Bool

  private var table: [String: UploadResource] = [:]
  private var usage = UploadUsage()
  private var expiryTimer: (timer: EventLoop.Timer, deadline: MonotonicInstant)?
  private(set) var stops = false

  init(
    loop: EventLoop, store: any UploadRecords, worker: BackgroundWorker, durability: Durability,
    options: UploadServer.Configuration.Uploads, finishedLimit: Int,
    maximumBodyLength: UInt64?, emit: @escaping (ServerEvent) -> Void,
    isValid: @escaping ([UInt8]) -> Bool, router: @escaping RequestRouter
  ) {
    self.isValid = isValid
    self.loop = loop
    self.store = store
    self.worker = worker
    self.durability = durability
    self.options = options
    self.emit = emit
    self.router = router
    self.finishedLimit = finishedLimit
    var limits = UploadLimits()
    limits.maximumSize = options.maximumSize
    // Whatever is larger is refused while it is parsed, before anything of ours sees it.
    limits.maximumAppendSize = [options.maximumAppendSize, maximumBodyLength].compactMap(\.self).min()
    limits.minimumAppendSize = options.minimumAppendSize
    limits.maximumAge = UInt64(max(0, options.maximumAge.nanoseconds / 1_000_000_000))
    self.limits = limits
  }

  // MARK: Beginning and end

  /// Takes up what an earlier server has left.
  func load() {
    for stored in store.load() {
      guard let record = stored.record, let resource = UploadResource(stored.token, record, stored.age, self) else {
        emit(ServerEvent(.refused, reason: "the record of an upload in .uploads cannot be read; it is left alone"))
        continue
      }
      table[stored.token] = resource
      if resource.isUnfinished { usage.add(resource.owner, bytes: resource.keptCount) }
    }
    armExpiry()
  }

  /// The server stops: what is known is written down. `action` is called when the disk has it.
  func end(_ action: @escaping () -> Void) {
    stops = true
    if let expiryTimer { loop.cancel(expiryTimer.timer) }
    expiryTimer = nil
    for resource in table.values { resource.serverEnds() }
    store.whenIdle(action)
  }

  // MARK: Requests

  subscript(token: String) -> UploadResource? { table[token] }

  /// A creation: makes the resource and begins its first transfer.
  func create(_ transfer: UploadTransfer, settled: HeaderFields) {
    let request = transfer.request
    do throws(UploadRefusal) {
      let state = try UploadResourceState(creating: request, limits: limits, awaitsDisk: durability == .always)
      try admit(transfer.client)
      let token = StreamName.randomID()
      let resource = UploadResource(token, state, transfer, settled: settled, self)
      table[token] = resource
      usage.add(transfer.client, bytes: 0)
      armExpiry()
      resource.create(transfer)
    } catch {
      emit(ServerEvent(.refused, peer: transfer.peer, status: error.status, reason: error.reason))
      transfer.respond(ServerAnswer.refused(error, request.version, limits: limits))
    }
  }

  /// The record of a new resource could not be written.
  func neverCreated(_ resource: UploadResource) {
    usage.remove(resource.owner, bytes: resource.keptCount)
    forget(resource)
  }

  private func admit(_ owner: UploadOwner) throws(UploadRefusal) {
    if stops { throw .serverStops }
    guard usage.count < options.maximumCount, usage.count(of: owner) < options.maximumCountPerClient ?? .max else {
      throw .tooManyUploads
    }
    guard quotaRoom(of: owner) > 0 else { throw .quotaExhausted }
  }

  /// Whether an upload may still be completed for its owner: between its creation and its end a token may have been withdrawn.
  func isStillAuthorized(_ owner: UploadOwner) -> Bool { owner.credential.map(isValid) ?? true }

  // MARK: Quotas

  /// How many bytes more this owner's unfinished uploads may keep.
  func quotaRoom(of owner: UploadOwner) -> UInt64 {
    let total = options.quota.map { $0 - min($0, usage.bytes) } ?? .max
    let own = options.quotaPerClient.map { $0 - min($0, usage.bytes(of: owner)) } ?? .max
    return min(total, own)
  }

  func kept(_ count: UInt64, by owner: UploadOwner) { usage.kept(count, by: owner) }
  func gaveBack(_ count: UInt64, by owner: UploadOwner) { usage.gaveBack(count, by: owner) }

  /// An upload is complete or inactive: its bytes are nobody's concern here any more. Its record stays for a while.
  func finished(_ resource: UploadResource, keeping bytes: UInt64) {
    usage.remove(resource.owner, bytes: bytes)
    trim()
  }

  /// Records of what is over are forgotten, oldest first and many at a time.
  private func trim() {
    guard table.count - usage.count > finishedLimit else { return }
    let over = table.values.filter { !$0.isUnfinished }.sorted { $0.lastActivity < $1.lastActivity }
    for resource in over.prefix(max(0, over.count - finishedLimit / 2)) { forget(resource) }
  }

  private func forget(_ resource: UploadResource) {
    table[resource.token] = nil
    store.remove(resource.token)
  }

  // MARK: Expiry

  /// The timer is never moved to a later time: it fires, finds that its resource was alive, and is set anew.
  private func armExpiry() {
    guard !stops, expiryTimer == nil, let deadline = table.values.lazy.map(\.deadline).min() else { return }
    expiryTimer = (loop.schedule(at: deadline) { [unowned self] in expire() }, deadline)
  }

  private func expire() {
    expiryTimer = nil
    let now = MonotonicInstant.now
    for resource in Array(table.values) where resource.deadline <= now {
      if !resource.isUnfinished {
        forget(resource)
      } else if resource.isAtWork {
        // A stream that is silent for longer than a resource lives is at work all the same.
        resource.touch()
      } else {
        resource.deactivate(.expired, peer: nil)
      }
    }
    armExpiry()
  }
}

/// How many uploads are unfinished and how many bytes they keep, in total and by owner.
struct UploadUsage {
  private struct Entry {
    var count = 0
    var bytes: UInt64 = 0
  }

  private(set) var count = 0
  private(set) var bytes: UInt64 = 0
  private var owners: [UploadOwner: Entry] = [:]

  func count(of owner: UploadOwner) -> Int { owners[owner]?.count ?? 0 }
  func bytes(of owner: UploadOwner) -> UInt64 { owners[owner]?.bytes ?? 0 }

  mutating func add(_ owner: UploadOwner, bytes: UInt64) {
    count += 1
    owners[owner, default: Entry()].count += 1
    kept(bytes, by: owner)
  }

  mutating func kept(_ count: UInt64, by owner: UploadOwner) {
    bytes += count
    owners[owner, default: Entry()].bytes += count
  }

  mutating func gaveBack(_ count: UInt64, by owner: UploadOwner) {
    bytes -= min(count, bytes)
    let own = min(count, self.bytes(of: owner))
    owners[owner]?.bytes -= own
  }

  mutating func remove(_ owner: UploadOwner, bytes: UInt64) {
    gaveBack(bytes, by: owner)
    count -= 1
    owners[owner]?.count -= 1
    if owners[owner]?.count == 0 { owners[owner] = nil }
  }
}
