// All upload resources of a server: found by their tokens, limited in number and bytes, and forgotten after their
// lifetime.

package import DiskFiles
internal import EventLoops
package import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
package import StreamServing

/// The table of upload resources, and what they share. Only on the loop's thread.
package final class UploadResources {
  /// The settings of all uploads.
  package struct Settings {
    package var options: UploadLimitsConfiguration
    package var durability: Durability
    /// Identifies this boot of the machine.
    package var bootIdentifier: String
    /// The limits for records of finished uploads.
    package var finishedLimits: FinishedUploads.Limits
    /// The maximum content length that the parser accepts, in bytes; nil for any.
    package var maximumBodyLength: UInt64?

    package init(
      options: UploadLimitsConfiguration, durability: Durability, bootIdentifier: String,
      finishedLimits: FinishedUploads.Limits, maximumBodyLength: UInt64?
    ) {
      (self.options, self.durability, self.bootIdentifier) = (options, durability, bootIdentifier)
      (self.finishedLimits, self.maximumBodyLength) = (finishedLimits, maximumBodyLength)
    }
  }

  let loop: EventLoop
  let store: any UploadRecords
  let worker: BackgroundWorker
  let durability: Durability
  let figures: ServerLoopFigures
  let bootIdentifier: String
  /// The boot identifier, if bytes may be acknowledged that are not on the disk.
  var unsyncedBoot: String? { durability == .always ? nil : bootIdentifier }
  private let assignment: LoopAssignment
  /// Used with ``Durability/interval``.
  let intervalSync: IntervalSync
  let options: UploadLimitsConfiguration
  let emit: (ServerEvent) -> Void
  /// The router within, which gives the resource of each request.
  let router: (RequestHead) -> RoutedHandler
  let limits: UploadLimits
  /// The records of finished uploads.
  private var finishedUploads: FinishedUploads
  let lifetimes: UploadLifetimes
  /// Whether a credential is valid now.
  private let isValid: ([UInt8]) -> Bool

  var table: [String: UploadResource] = [:]
  let usage: UploadUsage
  private let accounts: StreamAccounts?
  /// How many uploads in the table are unfinished.
  var unfinishedCount: Int {
    get { figures.values.openUploads }
    set { figures.values.openUploads = newValue }
  }
  var expiryTimer: (timer: EventLoop.Timer, deadline: MonotonicInstant)?
  var agesTimer: EventLoop.Timer?
  private(set) var stops = false
  /// Runs work on this loop once every request that has reached the server so far has reached its loop.
  package var gather: (@escaping @Sendable () -> Void) -> Void = { $0() }

  /// How long one slice of lengthy work may block requests.
  static let slice = Duration.milliseconds(5)
  /// Called when the names of all uploads from an earlier server have been read, and when one of these uploads was read
  /// after that. ``mayHaveUnknownUploads(of:)`` then applies to fewer streams.
  package var becameKnown: () -> Void = {}
  /// The uploads of an earlier server that are not in the table yet.
  var earlier = EarlierUploads()

  /// - Parameter router: gives the handlers within.
  package init(
    _ context: ServingContext, _ settings: Settings, store: any UploadRecords, worker: BackgroundWorker,
    usage: UploadUsage, accounts: StreamAccounts?,
    router: @escaping (RequestHead) -> RoutedHandler
  ) {
    (loop, assignment, figures) = (context.loop, context.assignment, context.figures)
    (isValid, emit) = (context.isValid, context.emit)
    lifetimes = UploadLifetimes(sized: settings.options.maximumAge, live: context.finishAfter)
    (options, durability, bootIdentifier) = (settings.options, settings.durability, settings.bootIdentifier)
    (self.store, self.worker, self.router) = (store, worker, router)
    (self.usage, self.accounts) = (usage, accounts)
    intervalSync = IntervalSync(loop)
    finishedUploads = FinishedUploads(settings.finishedLimits)
    var limits = UploadLimits()
    limits.maximumSize = options.maximumSize
    // The parser refuses anything larger before our code sees it.
    limits.maximumAppendSize = [options.maximumAppendSize, settings.maximumBodyLength].compactMap(\.self).min()
    limits.minimumAppendSize = options.minimumAppendSize
    limits.maximumAge = lifetimes.toldOfAll
    self.limits = limits
  }

  // MARK: The end

  /// The server stops and writes the current state. `action` is called when the disk has it.
  package func end(_ action: @escaping () -> Void) {
    stops = true
    if let expiryTimer { loop.cancel(expiryTimer.timer) }
    expiryTimer = nil
    if let agesTimer { loop.cancel(agesTimer) }
    agesTimer = nil
    intervalSync.cancel()
    var open = 1
    let saved = { [self] in
      open -= 1
      guard open == 0 else { return }
      store.whenIdle { [self] in
        noteAges()
        for resource in table.values { resource.partFromHandler() }
        action()
      }
    }
    for resource in Array(table.values) {
      open += 1
      resource.serverEnds(saved)
    }
    saved()
  }

  // MARK: Requests

  /// The upload of that name; nil if there is none.
  ///
  /// - Throws: ``UploadRefusal`` if that is unknown now. Reporting a missing upload is final: its client would abandon
  ///   it.
  func find(_ token: String) throws(UploadRefusal) -> UploadResource? {
    if let resource = table[token] { return resource }
    guard earlier.isUnlisted && assignment.isToken(token) || earlier.postponed.contains(token) else { return nil }
    do throws(SystemError) {
      return try takeUp(token, complains: false)
    } catch {
      throw .outOfResources(error.reason)
    }
  }

  /// Runs `work` once this loop has every request that has reached the server so far.
  func whenArrived(_ work: @escaping () -> Void) {
    // Used on the loop's thread only. Other loops merely carry it.
    nonisolated(unsafe) let work = work
    gather { work() }
  }

  /// A creation: makes the resource and begins its first transfer.
  ///
  /// - Parameters:
  ///   - settled: the fields that the handler requires in its request, and that the creation's answers contain.
  ///   - needed: the names of the fields that the handler needs; nil for all.
  func create(_ transfer: UploadTransfer, settled: HeaderFields, needed: Set<String>?) {
    let request = transfer.request
    do throws(UploadRefusal) {
      var limits = limits
      limits.maximumAge = lifetimes.told(isLive: try request.indicatedLength() == nil)
      let state = try UploadResourceState(creating: request, limits: limits, awaitsDisk: durability == .always)
      if stops { throw .serverStops }
      let share = try usage.admit(transfer.client)
      unfinishedCount += 1
      let stream = settled.single("stream-id").map {
        StreamName(path: transfer.head.target.path, streamID: $0, mediaType: nil)
      }
      let token = assignment.newToken(for: stream)
      let resource = UploadResource(token, state, transfer, settled: settled, needed: needed, self)
      resource.share = share
      table[token] = resource
      armExpiry(for: resource)
      armAges()
      resource.create(transfer)
    } catch {
      if error == .quotaExhausted { accounts?.recount(on: worker) }
      emit(ServerEvent(.refused, peer: transfer.peer, status: error.status(request.version), reason: error.reason))
      transfer.respond(ServerAnswer.refused(error, request.version, limits: limits))
    }
  }

  /// The record of a new resource could not be written.
  func neverCreated(_ resource: UploadResource) {
    settleAccount(of: resource)
    forget(resource.token)
  }

  /// Whether the token of the request is valid, or was valid very recently. It may be withdrawn while bytes arrive.
  func isStillAuthorized(_ transfer: UploadTransfer, within patience: Duration) -> Bool {
    transfer.authorization.admits(transfer.client.credential, within: patience, isValid)
  }

  // MARK: Limits

  func newAccount() -> StreamAccount { StreamAccount(usage) }

  /// The bytes of a live stream stay although their upload is over. They count until an operator removes them.
  private func keepBody(of resource: UploadResource) {
    guard let file = store.bodyName(resource.token) else { return }
    accounts?.found(file, of: file, owner: resource.owner)
  }

  /// An upload is complete or inactive, and its bytes are no longer handled here. Its record stays for a while, without
  /// the fields of its request, which will not be made again.
  func finished(_ resource: UploadResource) {
    settleAccount(of: resource)
    resource.content.abandonDigests()
    resource.ledger.forgetFields()
    keepFinished(resource, bytes: resource.ledger.recordLength)
    // A finished upload may have a shorter lifetime than an unfinished one.
    armExpiry(for: resource)
  }

  func keepFinished(_ resource: UploadResource, bytes: Int) {
    // The record shows an operator whose bytes these are.
    guard !resource.keepsBody else { return keepBody(of: resource) }
    let forgotten = finishedUploads.add(resource.token, of: resource.owner, bytes: bytes, since: resource.lastActivity)
    for token in forgotten { forget(token) }
  }

  private func settleAccount(of resource: UploadResource) {
    guard let share = resource.share else { return }
    resource.content.uncount()
    usage.leave(share)
    resource.share = nil
    unfinishedCount -= 1
  }

  func forget(_ token: String) {
    table[token] = nil
    finishedUploads.remove(token)
    if earlier.isUnlisted { earlier.forgotten.insert(token) }
    store.remove(token)
  }
}
