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
  let figures: LoopFigures
  let bootIdentifier: String
  /// The boot identifier, if bytes may be acknowledged that the disk does not have.
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

  private var table: [String: UploadResource] = [:]
  private let usage: UploadUsage
  private let accounts: StreamAccounts?
  /// How many uploads in the table are unfinished.
  private var unfinishedCount: Int {
    get { figures.values.openUploads }
    set { figures.values.openUploads = newValue }
  }
  private var expiryTimer: (timer: EventLoop.Timer, deadline: MonotonicInstant)?
  private var agesTimer: EventLoop.Timer?
  private(set) var stops = false
  /// Runs work on this loop once every request that has reached the server so far has reached its loop.
  package var gather: (@escaping @Sendable () -> Void) -> Void = { $0() }

  /// How long one slice of lengthy work may block requests.
  private static let slice = Duration.milliseconds(5)
  /// The minimum time between two searches for expired uploads.
  private static let expiryPause = Duration.milliseconds(250)
  /// The pauses before an unreadable list is tried again.
  private static let listingPauses = (first: Duration.milliseconds(250), longest: Duration.seconds(30))
  /// Called when the names of all uploads from an earlier server have been read, and when one of these uploads was read
  /// after that. ``mayHaveUnknownUploads(of:)`` then applies to fewer streams.
  package var becameKnown: () -> Void = {}
  /// Whether there may be records that were not listed yet.
  private var isLoading = true
  /// Listed tokens that are still to be read.
  private var unread: [String] = []
  private var listingPause = UploadResources.listingPauses.first
  /// The last reported reason why the uploads could not be listed.
  private var complaint: String?
  /// Uploads that were listed and could not be restored. They are read again and again.
  private var postponed = PostponedUploads()
  /// Work that waits until all uploads were listed, or listing has failed.
  private var waiting: [() -> Void] = []
  private var isNewsDue = false
  /// Tokens forgotten while records are read, because one may be listed before its file is gone.
  private var forgotten: Set<String> = []

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

  // MARK: Beginning and end

  /// Restores the uploads of an earlier server: at once for as long as `patience` allows, and the rest in slices, with
  /// requests served in between. An upload that a request names is restored when the request arrives.
  package func load(patience: Duration) {
    let end = MonotonicInstant.now + patience
    var pause = Duration.zero
    while pause == .zero, MonotonicInstant.now < end {
      guard let next = loadSlice() else { return }
      pause = next
    }
    loadOn(after: pause)
  }

  private func loadOn(after pause: Duration) {
    loop.schedule(after: pause) { [unowned self] in
      guard !stops, let pause = loadSlice() else { return }
      loadOn(after: pause)
    }
  }

  /// Returns the pause before the next slice; nil after the last one.
  private func loadSlice() -> Duration? {
    let end = MonotonicInstant.now + Self.slice
    repeat {
      if unread.isEmpty {
        guard isLoading else { return readAgain() }
        do throws(SystemError) {
          guard let tokens = try store.nextTokens() else { return listed() }
          unread = tokens
        } catch {
          return cannotList(error)
        }
      }
      if let token = unread.popLast(), table[token] == nil { takeUpListed(token) }
    } while MonotonicInstant.now < end
    return .zero
  }

  /// Every upload was listed.
  private func listed() -> Duration? {
    isLoading = false
    forgotten = []
    listingPause = Self.listingPauses.first
    moreIsKnown()
    return readAgain()
  }

  /// Reads those that could not be read once more, after a pause.
  private func readAgain() -> Duration? {
    guard !postponed.isEmpty else { return nil }
    unread = Array(postponed.tokens)
    return nextPause()
  }

  private func moreIsKnown() {
    becameKnown()
    releaseWaiting()
    armNext()
  }

  private func releaseWaiting() {
    let released = waiting
    waiting = []
    for work in released { work() }
  }

  private func cannotList(_ error: SystemError) -> Duration {
    if complaint != "\(error)" {
      complaint = "\(error)"
      emit(
        ServerEvent(
          .warning,
          reason: "cannot list the uploads in .uploads. The server retries. Until then, each upload waits until a "
            + "request names it, no upload expires, and no silent recording is closed: \(error)"))
    }
    releaseWaiting()
    return nextPause()
  }

  private func nextPause() -> Duration {
    defer { listingPause = min(listingPause * 2, Self.listingPauses.longest) }
    return listingPause
  }

  private func takeUpListed(_ token: String) {
    do throws(SystemError) {
      try takeUp(token, complains: true)
    } catch {
      guard postponed.insert(token) else { return }
      emit(
        ServerEvent(
          .warning,
          reason: "cannot read the upload of \(store.recordName(token)): \(error). The server retries. Until "
            + "then, it answers requests for it with 503, and closes or removes no recording that may belong to it. Repair "
            + "the disk, or move the file away to abandon the upload."))
    }
  }

  /// Restores an upload of an earlier server; nil if there is none of that name, or its record is invalid.
  @discardableResult
  private func takeUp(_ token: String, complains: Bool) throws(SystemError) -> UploadResource? {
    let resource = try restored(token, complains: complains)
    if postponed.remove(token), !isLoading, !isNewsDue {
      // Notify once for all that are read in this turn.
      isNewsDue = true
      loop.schedule(after: .zero) { [unowned self] in
        isNewsDue = false
        if !stops { moreIsKnown() }
      }
    }
    return resource
  }

  private func restored(_ token: String, complains: Bool) throws(SystemError) -> UploadResource? {
    // Its file may be about to be removed.
    guard !forgotten.contains(token), let stored = try store.read(token) else { return nil }
    guard let record = stored.record, let resource = try UploadResource(token, record, stored.age, self) else {
      if complains {
        emit(
          ServerEvent(
            .warning, reason: "cannot parse the record of an upload in .uploads. The record is left unchanged"))
      }
      return nil
    }
    table[token] = resource
    if resource.isUnfinished {
      resource.restoreHolding()
      unfinishedCount += 1
      resource.share = usage.add(resource.owner)
      resource.countRestored()
    } else if !resource.reportsLoss() {
      keepFinished(resource, bytes: stored.size)
    }
    armExpiry(for: resource)
    armAges()
    return resource
  }

  // MARK: Uploads that are not known yet

  /// Whether uploads of an earlier server that are not known yet may belong to that stream.
  package func mayHaveUnknownUploads(of name: StreamName) -> Bool {
    isLoading || postponed.mayGoInto(LoopAssignment.key(name))
  }

  /// Whether unknown uploads may have bytes in the recording that is removed with an upload.
  private func mayShare(_ resource: UploadResource) -> Bool {
    resource.ownsFile && (isLoading || postponed.mayGoInto(LoopAssignment.key(ofToken: resource.token)))
  }

  /// Whether `work` is called later. The recording of an upload may be removed only once all uploads that may have
  /// bytes in it are known.
  ///
  /// - Throws: ``UploadRefusal`` if it is unknown when that will be.
  func waits(toRemove resource: UploadResource, _ work: @escaping () -> Void) throws(UploadRefusal) -> Bool {
    guard mayShare(resource) else { return false }
    guard isLoading, complaint == nil, !postponed.mayGoInto(LoopAssignment.key(ofToken: resource.token)) else {
      throw .outOfResources("other uploads of the same stream cannot be read now")
    }
    waiting.append(work)
    return true
  }

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
    guard isLoading && assignment.isToken(token) || postponed.contains(token) else { return nil }
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

  /// The bytes of a live stream stay although their upload is over. They count until somebody removes them.
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

  private func keepFinished(_ resource: UploadResource, bytes: Int) {
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

  private func forget(_ token: String) {
    table[token] = nil
    finishedUploads.remove(token)
    if isLoading { forgotten.insert(token) }
    store.remove(token)
  }

  // MARK: Expiry

  /// The timer is never moved to a later time. It fires, finds that its resource was alive, and is set again.
  private func armExpiry(for resource: UploadResource) {
    let deadline = resource.deadline
    if let expiryTimer {
      guard deadline < expiryTimer.deadline else { return }
      loop.cancel(expiryTimer.timer)
    }
    arm(deadline)
  }

  private func arm(_ deadline: MonotonicInstant) {
    // Before all uploads are known, an expired one could take the bytes of another with it.
    guard !stops, !isLoading else { return }
    // Combine expirations that are close together, because each firing searches the whole table.
    let deadline = max(deadline, .now + Self.expiryPause)
    expiryTimer = (loop.schedule(at: deadline) { [unowned self] in expire() }, deadline)
  }

  private func expire() {
    expiryTimer = nil
    let now = MonotonicInstant.now
    expire(table.values.filter { $0.deadline <= now }[...])
  }

  /// In slices between which requests are served, because removing files takes time.
  private func expire(_ due: ArraySlice<UploadResource>) {
    let now = MonotonicInstant.now
    var due = due
    while let resource = due.popFirst() {
      // It may have been forgotten or used since the last slice.
      if table[resource.token] === resource, resource.deadline <= now { expire(resource) }
      if MonotonicInstant.now > now + Self.slice { break }
    }
    guard !stops else { return }
    if !due.isEmpty {
      let rest = due
      loop.schedule(after: .zero) { [unowned self] in expire(rest) }
    } else {
      armNext()
    }
  }

  /// A finished upload may have set the timer for its own, later end.
  private func armNext() {
    guard let deadline = table.values.lazy.filter({ [self] in !mayShare($0) }).map(\.deadline).min() else { return }
    if let expiryTimer { loop.cancel(expiryTimer.timer) }
    arm(deadline)
  }

  private func expire(_ resource: UploadResource) {
    if resource.isAtWork {
      // A stream that is silent for longer than a resource lives is at work all the same.
      resource.touch()
    } else if !resource.isUnfinished {
      if resource.keepsBody { resource.touch() } else { forget(resource.token) }
    } else if !mayShare(resource) {
      resource.expire()
    }
  }

  // MARK: Ages

  /// After a kill, the server has lost at most an eighth of an upload's lifetime.
  private func armAges() {
    guard !stops, agesTimer == nil, !table.isEmpty else { return }
    let life = lifetimes.shortest.nanoseconds
    let interval = Duration.nanoseconds(min(max(life / 8, 100_000_000), 900_000_000_000))
    agesTimer = loop.schedule(after: interval) { [unowned self] in
      agesTimer = nil
      noteAges()
      armAges()
    }
  }

  private func noteAges() {
    let now = MonotonicInstant.now
    store.noteAges(
      table.values.compactMap { $0.isAtWork ? nil : (token: $0.token, idle: $0.age(now: now)) })
  }
}
