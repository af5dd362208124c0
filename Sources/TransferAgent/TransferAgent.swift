// The agent: the queue, its database, its socket, and the uploads that run.

internal import DiskFiles
package import EventLoops
internal import Glibc
internal import LiveStreaming
internal import ResumableUploads
package import TransferClient
internal import UploadClient

/// Transfers files for programs that may end meanwhile.
///
/// The loop of ``run()`` owns everything; it may wait for the disk, because the database is there. The network has a
/// thread of its own, and files are opened on another. Unchecked for that reason.
package final class TransferAgent: @unchecked Sendable {
  package struct Settings: Sendable {
    /// How long the agent stays with nothing to do and nobody connected; nil for ever.
    package var idleLimit: Duration?
    /// A socket that listens already, from the service manager.
    package var listener: Int32?
    package init() {}
  }

  let loop: EventLoop
  private let location: AgentLocation
  private let settings: Settings
  private let database: TransferDatabase
  private let listener: Int32
  /// The socket that this agent has made; nil for one of the service manager.
  private let socketFile: AgentSocket.File?
  private let session: UploadSession
  private let files = BackgroundWorker()
  private let networkChanges: NetworkChanges?

  private(set) var queue: TransferQueue
  private var peers: [ObjectIdentifier: AgentPeer] = [:]
  /// Who hears of a session's transfers: the latest program to ask. Of those of the command, everybody who asks.
  private var watchers: [String: [AgentPeer]] = [:]
  /// What runs; nil while its file is being opened.
  private var uploads: [Int64: LiveStreamer?] = [:]
  /// How many servers are being asked to forget an upload.
  private var abandons = 0
  /// What has happened and the database could not take.
  private var pending: [TransferQueue.Event] = []
  private var pendingDelay = Duration.seconds(1)
  private var wakeTimer: EventLoop.Timer?
  private var idleTimer: EventLoop.Timer?
  private var progressTimer: EventLoop.Timer?
  private var networkTimer: EventLoop.Timer?
  private var isEnding = false
  private var isAccepting = false
  private var watchesNetwork = false

  /// How often programs that watch hear of progress.
  private static let progressInterval = Duration.milliseconds(500)
  /// How long news of the network are awaited after the first.
  private static let settlingTime = Duration.seconds(2)
  /// How long what runs may take to stop at the end. The server is asked where it stands in any case.
  private static let stopLimit = Duration.seconds(5)
  /// How long programs wait when there is no descriptor for their connections.
  private static let acceptPause = Duration.milliseconds(500)
  /// How long a server may take to forget a cancelled upload.
  private static let abandonLimit = Duration.seconds(60)

  /// Opens the database, and then listens: whoever reaches the agent finds all transfers.
  ///
  /// - Throws: ``AgentError``. If another agent runs, ``AgentError/inUse(_:)``.
  package init(_ location: AgentLocation, _ settings: Settings = Settings()) throws(AgentError) {
    (self.location, self.settings) = (location, settings)
    database = try TransferDatabase(directory: location.directory)
    queue = try database.load()
    if let listening = settings.listener {
      (listener, socketFile) = (listening, nil)
    } else {
      (listener, socketFile) = try AgentSocket.listen(location.socket, in: location.socketDirectory)
    }
    do throws(SystemError) {
      loop = try EventLoop()
      session = try UploadSession()
      networkChanges = try? NetworkChanges()
    } catch {
      throw .system(location.socket, error)
    }
  }

  /// Works until ``stop()``, or until there has been nothing to do for a while.
  ///
  /// - Throws: ``SystemError`` when the socket cannot be watched.
  package func run() throws(SystemError) {
    try listen()
    if let networkChanges {
      try? loop.register(networkChanges.descriptor, .readable) { [unowned self] _ in
        if networkChanges.hasChanged() { networkHasChanged() }
      }
    }
    happen(.timeCame)
    loop.run()
    // In this order: whoever finds no socket starts an agent, which waits for no lock.
    socketFile?.remove()
    close(listener)
    session.close()
  }

  /// Ends soon: what runs is stopped, and continues with the next agent. Any thread.
  package func stop() {
    loop.execute { [self] in
      guard !isEnding else { return }
      isEnding = true
      loop.schedule(after: Self.stopLimit) { [self] in loop.stop() }
      happen(.shutdown)
      endIfStopped()
    }
  }

  // MARK: Events

  /// Lets an event happen: in the database first, then in what runs.
  ///
  /// - Parameter order: what is answered.
  private func happen(_ event: TransferQueue.Event, answering order: (peer: AgentPeer, number: Int64)? = nil) {
    guard order != nil || pending.isEmpty else { return pending.append(event) }
    if let error = tryEvent(event, order) {
      if let order {
        return order.peer.say(
          .refused(
            number: order.number, .database,
            "the agent's database cannot be written: \(error). Nothing has changed; try again later."))
      }
      pending.append(event)
      retryLater()
    }
  }

  /// - Returns: why the database does not take it; nil if it does.
  private func tryEvent(_ event: TransferQueue.Event, _ order: (peer: AgentPeer, number: Int64)?) -> String? {
    var next = queue
    let actions = next.handle(event, now: WallClock.now.sinceEpoch)
    do throws(AgentError) {
      try database.apply(actions)
    } catch {
      if case .database(_, let reason) = error { return reason }
      return "\(error)"
    }
    queue = next
    for action in actions { perform(action, order) }
    watchNetwork()
    endIfStopped()
    watchIdleness()
    return nil
  }

  private func retryLater() {
    loop.schedule(after: pendingDelay) { [self] in
      pendingDelay = min(pendingDelay * 2, .seconds(60))
      while let event = pending.first {
        if tryEvent(event, nil) != nil { return retryLater() }
        pending.removeFirst()
      }
      pendingDelay = .seconds(1)
    }
  }

  private func perform(_ action: TransferQueue.Action, _ order: (peer: AgentPeer, number: Int64)?) {
    switch action {
    case .store, .remove, .forget: break
    case .accept(let id): order.map { $0.peer.say(.accepted(number: $0.number, id: id)) }
    case .refuse(let refusal, let message): order.map { $0.peer.say(.refused(number: $0.number, refusal, message)) }
    case .done: order.map { $0.peer.say(.done(number: $0.number)) }
    case .start(let transfer): start(transfer)
    case .stop(let id):
      // One whose file is being opened has not begun: see `begin`.
      if case let streamer?? = uploads[id] { streamer.cancel() }
    case .retry(let id): if case let streamer?? = uploads[id] { streamer.retryNow() }
    case .abandon(let transfer): abandon(transfer)
    case .tell(let id):
      tell(id)
    case .wake(let time): wake(at: time)
    }
  }

  private func tell(_ id: Int64) {
    guard let transfer = queue.transfers[id], let watchers = watchers[transfer.request.session] else { return }
    let answer = AgentAnswer.transfer(number: nil, status(transfer))
    for watcher in watchers { watcher.say(answer, isRoutine: !transfer.hasEnded) }
  }

  /// The wall clock may be set: it is looked at again after a minute at the latest.
  private func wake(at time: Int64) {
    wakeTimer.map { loop.cancel($0) }
    let delay = max(0, min(time - WallClock.now.sinceEpoch, 60_000))
    wakeTimer = loop.schedule(after: .milliseconds(delay)) { [self] in
      wakeTimer = nil
      happen(.timeCame)
    }
  }

  /// An address or a route has come or gone. When that settles, what waits for its next attempt need not wait longer.
  private func networkHasChanged() {
    guard networkTimer == nil, !queue.isIdle else { return }
    networkTimer = loop.schedule(after: Self.settlingTime) { [self] in
      networkTimer = nil
      for case let streamer? in uploads.values { streamer.retryNow() }
      queue.endRests()
      happen(.timeCame)
    }
  }

  /// Asks what kind of network it is, from the first transfer on that depends on it.
  private func watchNetwork() {
    guard !watchesNetwork, queue.dependsOnNetwork else { return }
    watchesNetwork = true
    NetworkManager.watch { [self] conditions in loop.execute { [self] in happen(.network(conditions)) } }
  }

  // MARK: Uploads

  private func start(_ transfer: Transfer) {
    uploads[transfer.id] = .some(nil)
    files.execute { [self] in
      let file = RunningUpload.file(transfer)
      loop.execute { [self] in begin(transfer, file) }
    }
    watchProgress()
  }

  private func begin(_ transfer: Transfer, _ file: Result<UploadFile, TransferFailure>) {
    let id = transfer.id
    guard queue.running[id] == .running else { return finish(id, .stopped(resumeData: transfer.resumeData)) }
    switch file {
    case .failure(let failure) where failure.isTemporary: finish(id, .postponed(failure.message))
    case .failure(let failure):
      finish(id, .failed(TransferResult(.failed, cause: failure.cause, message: failure.message)))
    case .success(let file):
      let streamer = RunningUpload.streamer(transfer, file, session)
      uploads[id] = streamer
      streamer.start { [self] event in
        guard let news = RunningUpload.news(event, of: transfer) else { return }
        loop.execute { [self] in hear(news, of: id) }
      }
    }
  }

  private func hear(_ news: UploadNews, of id: Int64) {
    switch news {
    case .created(let data): if let text = data.text { happen(.created(id, resumeData: text)) }
    case .acknowledged(let offset): queue.note(id, acknowledged: offset)
    case .trouble(let words):
      queue.note(id, trouble: .some(words))
      tell(id)
      // Others may have its place while it waits.
      if words != nil { happen(.timeCame) }
    case .ended(let ending): finish(id, ending)
    }
  }

  private func finish(_ id: Int64, _ ending: TransferQueue.Ending) {
    uploads[id] = nil
    happen(.finished(id, ending))
  }

  private func abandon(_ transfer: Transfer) {
    abandons += 1
    files.execute { [self] in
      // What is abandoned is not read: any file can stand in for one that is gone.
      guard
        let file = (try? UploadFile(path: transfer.request.path)) ?? (try? UploadFile(path: "/proc/self/exe"))
      else { return loop.execute { [self] in endAbandon() } }
      let streamer = RunningUpload.streamer(transfer, file, session)
      streamer.abandon()
      streamer.start { [self] event in
        if case .ended = event { loop.execute { [self] in endAbandon() } }
      }
      loop.execute { [self] in loop.schedule(after: Self.abandonLimit) { streamer.cancel() } }
    }
  }

  private func endAbandon() {
    abandons -= 1
    endIfStopped()
    watchIdleness()
  }

  /// Asks what runs how it stands, while somebody wants to know.
  private func watchProgress() {
    guard progressTimer == nil, !uploads.isEmpty, !watchers.isEmpty else { return }
    progressTimer = loop.schedule(after: Self.progressInterval) { [self] in
      progressTimer = nil
      updateProgress { [self] in watchProgress() }
    }
  }

  /// Asks what runs how it stands, tells those who watch, and then calls `done`.
  private func updateProgress(_ done: @escaping @Sendable () -> Void) {
    let running = uploads.compactMap { id, streamer in streamer.map { (id, $0) } }
    guard !running.isEmpty else { return done() }
    for (index, (id, streamer)) in running.enumerated() {
      streamer.withProgress { [self] progress in
        loop.execute { [self] in
          if let transfer = queue.transfers[id], transfer.acknowledged != progress.acknowledged, !transfer.hasEnded {
            queue.note(id, acknowledged: progress.acknowledged)
            tell(id)
          }
          // The network thread answers in the order of the questions.
          if index == running.count - 1 { done() }
        }
      }
    }
  }

  // MARK: Programs

  private func listen() throws(SystemError) {
    try loop.register(listener, .readable) { [unowned self] _ in acceptPeers() }
    isAccepting = true
  }

  /// Programs wait in the listener's queue for a while: the loop would report them again at once, and again.
  private func pauseListening() {
    loop.deregister(listener)
    isAccepting = false
    loop.schedule(after: Self.acceptPause) { [self] in
      do throws(SystemError) { try listen() } catch { pauseListening() }
    }
  }

  private func nextPeer() -> Int32? {
    guard isAccepting else { return nil }
    do throws(SystemError) {
      return try AgentSocket.accept(listener)
    } catch {
      pauseListening()
      return nil
    }
  }

  private func acceptPeers() {
    while let descriptor = nextPeer() {
      guard AgentSocket.peerUser(of: descriptor) == geteuid(), let peer = try? AgentPeer(descriptor, loop: loop) else {
        close(descriptor)
        continue
      }
      peers[ObjectIdentifier(peer)] = peer
      peer.onOrder = { [unowned self, unowned peer] order in obey(order, of: peer) }
      peer.onEnd = { [unowned self, unowned peer] in
        watchers = watchers.mapValues { $0.filter { $0 !== peer } }.filter { !$0.value.isEmpty }
        peers[ObjectIdentifier(peer)] = nil
        watchIdleness()
      }
    }
    watchIdleness()
  }

  private func obey(_ order: AgentOrder, of peer: AgentPeer) {
    let answer = (peer: peer, number: order.number)
    switch order.kind {
    case .submit(let request):
      // A program that did not hear the answer asks again, perhaps when the file is gone.
      if let id = queue.id(ofKey: request.key) { return peer.say(.accepted(number: order.number, id: id)) }
      examine(request, answer)
    case .list(let session):
      updateProgress { [self] in
        for transfer in sorted(session) { peer.say(.transfer(number: order.number, status(transfer))) }
        peer.say(.done(number: order.number))
      }
    case .pause(let id): happen(.pause(id), answering: answer)
    case .resume(let id): happen(.resume(id), answering: answer)
    case .cancel(let id): happen(.cancel(id), answering: answer)
    case .acknowledge(let id): happen(.acknowledge(id), answering: answer)
    case .watch(let session):
      var others = watchers[session, default: []].filter { $0 !== peer }
      if !session.isEmpty {
        for other in others { other.say(.replaced(session: session)) }
        others = []
      }
      watchers[session] = others + [peer]
      for transfer in sorted(session) { peer.say(.transfer(number: order.number, status(transfer))) }
      peer.say(.done(number: order.number))
      watchProgress()
    }
  }

  /// Looks at the file of a transfer, and accepts it.
  private func examine(_ request: TransferRequest, _ order: (peer: AgentPeer, number: Int64)) {
    files.execute { [self] in
      let result: Result<FileVersion, TransferFailure>
      do throws(UploadFileError) {
        let version = try UploadFile(path: request.path).version
        let found = FileStamp.of(request.path)
        if let named = request.file, let found, named != found {
          let message =
            "cannot upload \(request.path): it is not the file that the program has named: it is now \(found)"
            + " and was \(named). Leave it unchanged, and submit it again."
          result = .failure(TransferFailure(cause: "fileChanged", message: message))
        } else {
          result = .success(version)
        }
      } catch {
        result = .failure(TransferFailure(error, path: request.path))
      }
      loop.execute { [self] in
        switch result {
        case .success(let version):
          // An upload that starts over is the same stream to a server that keeps their names.
          var request = request
          request.streamID = request.streamID ?? LiveStreamConfiguration.randomStreamID()
          happen(.submitted(request, version: "\(version)", size: version.size), answering: order)
        case .failure(let failure): order.peer.say(.refused(number: order.number, .file, failure.message))
        }
      }
    }
  }

  private func sorted(_ session: String?) -> [Transfer] {
    queue.transfers.values.filter { session == nil || $0.request.session == session }.sorted { $0.id < $1.id }
  }

  private func status(_ transfer: Transfer) -> TransferStatus {
    let state: TransferStatus.State =
      switch transfer.state {
      case .active: queue.running[transfer.id] == nil ? .waiting : .running
      case .paused: .paused
      case .ended: .ended
      }
    return TransferStatus(
      id: transfer.id, key: transfer.request.key, session: transfer.request.session, task: transfer.request.task,
      state: state,
      url: UploadRequest.withoutCredentials(transfer.request.url), path: transfer.request.path,
      note: transfer.request.note, size: transfer.size,
      acknowledged: transfer.result?.byteCount ?? transfer.acknowledged, created: transfer.created,
      trouble: (state == .waiting ? queue.obstacle(transfer) : nil) ?? transfer.trouble, result: transfer.result)
  }

  // MARK: The end

  private func endIfStopped() {
    if isEnding, uploads.isEmpty, abandons == 0, pending.isEmpty { loop.stop() }
  }

  private var isIdle: Bool { queue.isIdle && peers.isEmpty && abandons == 0 && pending.isEmpty }

  private func watchIdleness() {
    guard let limit = settings.idleLimit else { return }
    guard isIdle else {
      idleTimer.map { loop.cancel($0) }
      idleTimer = nil
      return
    }
    guard idleTimer == nil else { return }
    idleTimer = loop.schedule(after: limit) { [self] in
      idleTimer = nil
      // Whoever has just connected.
      acceptPeers()
      if isIdle { loop.stop() }
    }
  }
}
