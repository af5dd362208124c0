// All upload resources of a server: found by their tokens, limited in number and bytes, forgotten when their time is over.

internal import EventLoops
internal import ResumableUploads

/// The table of upload resources and what all of them share. Only on the loop's thread.
final class UploadResources {
  let loop: EventLoop
  let store: any UploadRecords
  let worker: BackgroundWorker
  let durability: Durability
  let figures: LoopFigures
  private let assignment: LoopAssignment
  /// With ``Durability/interval``.
  let intervalSync: IntervalSync
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
  private let usage: UploadUsage
  /// How many of the table are unfinished.
  private var unfinishedCount: Int {
    get { figures.values.openUploads }
    set { figures.values.openUploads = newValue }
  }
  private var expiryTimer: (timer: EventLoop.Timer, deadline: MonotonicInstant)?
  private(set) var stops = false

  init(
    loop: EventLoop, assignment: LoopAssignment, figures: LoopFigures, store: any UploadRecords,
    worker: BackgroundWorker, durability: Durability,
    usage: UploadUsage, options: UploadServer.Configuration.Uploads, finishedLimit: Int,
    maximumBodyLength: UInt64?, emit: @escaping (ServerEvent) -> Void,
    isValid: @escaping ([UInt8]) -> Bool, router: @escaping RequestRouter
  ) {
    self.isValid = isValid
    self.usage = usage
    self.loop = loop
    self.assignment = assignment
    self.figures = figures
    intervalSync = IntervalSync(loop)
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
      guard resource.isUnfinished else { continue }
      unfinishedCount += 1
      resource.share = usage.add(resource.owner, bytes: resource.keptCount)
    }
    armExpiry()
  }

  /// The server stops: what is known is written down. `action` is called when the disk has it.
  func end(_ action: @escaping () -> Void) {
    stops = true
    if let expiryTimer { loop.cancel(expiryTimer.timer) }
    expiryTimer = nil
    intervalSync.cancel()
    for resource in table.values { resource.serverEnds() }
    store.whenIdle { [self] in
      for resource in table.values { resource.partFromHandler() }
      action()
    }
  }

  // MARK: Requests

  subscript(token: String) -> UploadResource? { table[token] }

  /// A creation: makes the resource and begins its first transfer.
  func create(_ transfer: UploadTransfer, settled: HeaderFields) {
    let request = transfer.request
    do throws(UploadRefusal) {
      let state = try UploadResourceState(creating: request, limits: limits, awaitsDisk: durability == .always)
      if stops { throw .serverStops }
      let share = try usage.admit(transfer.client, options)
      unfinishedCount += 1
      let stream = settled.single("stream-id").map {
        StreamName(path: transfer.head.target.path, streamID: $0, mediaType: nil)
      }
      let token = assignment.newToken(for: stream)
      let resource = UploadResource(token, state, transfer, settled: settled, self)
      resource.share = share
      table[token] = resource
      armExpiry()
      resource.create(transfer)
    } catch {
      emit(ServerEvent(.refused, peer: transfer.peer, status: error.status, reason: error.reason))
      transfer.respond(ServerAnswer.refused(error, request.version, limits: limits))
    }
  }

  /// The record of a new resource could not be written.
  func neverCreated(_ resource: UploadResource) {
    settleAccount(of: resource, bytes: resource.keptCount)
    forget(resource)
  }

  /// Whether an upload may still be completed for its owner: between its creation and its end a token may have been withdrawn.
  func isStillAuthorized(_ owner: UploadOwner) -> Bool { owner.credential.map(isValid) ?? true }

  // MARK: Quotas

  /// How many bytes more this owner's unfinished uploads may keep.
  func quotaRoom(of resource: UploadResource) -> UInt64 {
    if options.quota == nil && options.quotaPerClient == nil { return .max }
    return usage.room(of: resource.share, options)
  }

  func kept(_ count: UInt64, by resource: UploadResource) { usage.kept(count, by: resource.share) }
  func gaveBack(_ count: UInt64, by resource: UploadResource) { usage.gaveBack(count, by: resource.share) }

  /// An upload is complete or inactive: its bytes are nobody's concern here any more. Its record stays for a while.
  func finished(_ resource: UploadResource, keeping bytes: UInt64) {
    settleAccount(of: resource, bytes: bytes)
    trim()
  }

  private func settleAccount(of resource: UploadResource, bytes: UInt64) {
    guard resource.share != nil else { return }
    usage.remove(resource.owner, resource.share, bytes: bytes)
    resource.share = nil
    unfinishedCount -= 1
  }

  /// Records of what is over are forgotten, oldest first and many at a time.
  private func trim() {
    guard table.count - unfinishedCount > finishedLimit else { return }
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
