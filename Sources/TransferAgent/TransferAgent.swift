// The agent: the queue, its database, its socket, and the running transfers.

internal import DiskFiles
package import EventLoops
internal import Glibc
package import TransferClient
internal import UploadClient

/// Transfers files for programs that may end meanwhile.
///
/// The loop of ``run()`` owns everything. It may wait for the disk, because it uses the database. The network has a
/// separate thread, and files are opened on another. Unchecked for that reason.
package final class TransferAgent: @unchecked Sendable {
  package struct Settings: Sendable {
    /// How long the agent stays when it has nothing to do and no program is connected; nil for no limit.
    package var idleLimit: Duration?
    /// A listening socket from the service manager.
    package var listener: Int32?
    /// Receives lines for the operator of this machine, on the agent's thread.
    package var log: @Sendable (String) -> Void = { _ in }
    package init() {}
  }

  let loop: EventLoop
  let location: AgentLocation
  let settings: Settings
  let database: TransferDatabase
  let listener: Int32
  /// The socket that this agent has made; nil for one from the service manager.
  let socketFile: AgentSocket.File?
  let session: UploadSession
  let files = BackgroundWorker()
  /// Examines files that programs submit. The programs wait for that, and the digest of a large file takes a while.
  let examinations = BackgroundWorker()
  let networkChanges: NetworkChanges?
  /// The directory of downloads that programs have not moved away yet.
  let downloads: String

  var queue: TransferQueue
  var peers: [ObjectIdentifier: AgentPeer] = [:]
  /// The programs that watch each session's transfers. The latest program replaces the earlier one, but any number can
  /// watch the command's session.
  var watchers: [String: [AgentPeer]] = [:]
  /// The running transfers.
  var running: [Int64: RunningTransfer] = [:]
  /// How many removals of uploads from servers, or of parts, are under way.
  var abandons = 0
  /// Events of transfers that the database could not store, in their order.
  var pending: [TransferQueue.Event] = []
  var databaseTimer: EventLoop.Timer?
  /// The pauses before the agent tries a database again that has rejected a write.
  var databasePauses = RetryPauses(.seconds(1)...(.seconds(60)))
  /// The clocks at the last event. Before the first, those of the times that earlier agents have stored in this boot.
  var clocks = ClockReading.now
  var wakeTimer: EventLoop.Timer?
  var idleTimer: EventLoop.Timer?
  var progressTimer: EventLoop.Timer?
  var networkTimer: EventLoop.Timer?
  var isEnding = false
  var isAccepting = false
  /// Whether the kind of network is watched, or will be after a pause.
  var watchesNetwork = false
  /// Ends the pause before the next watch; nil while there is none.
  var watchTimer: EventLoop.Timer?
  var knowledge = NetworkKnowledge()

  /// How often watching programs receive progress.
  static let progressInterval = Duration.milliseconds(500)
  /// How long the agent waits for further network changes after the first.
  static let settlingTime = Duration.seconds(2)
  /// How long running transfers may take to stop at the end. The next agent asks the server for the offset anyway.
  static let stopLimit = Duration.seconds(5)
  /// How long programs wait when there is no descriptor for their connections.
  static let acceptPause = Duration.milliseconds(500)
  /// A smaller difference of the clocks, in milliseconds, may be the slewing of the wall clock.
  static let leastStep: UInt64 = 1000
  /// How long a server may take to remove a cancelled upload.
  static let abandonLimit = Duration.seconds(60)

  /// Opens the database, and then listens, so that every program that reaches the agent finds all transfers.
  ///
  /// - Throws: ``AgentError``. If another agent runs, it is ``AgentError/inUse(_:)``.
  package init(_ location: AgentLocation, _ settings: Settings = Settings()) throws(AgentError) {
    (self.location, self.settings) = (location, settings)
    downloads = location.directory + "/downloads"
    database = try TransferDatabase(directory: location.directory)
    queue = try database.load()
    // The clock may have been set since an earlier agent stored times.
    if let start = database.start { clocks = start }
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

  /// Runs until ``stop()``, or until there has been nothing to do for a while.
  ///
  /// - Throws: ``SystemError`` if the socket cannot be watched.
  package func run() throws(SystemError) {
    try listen()
    if let networkChanges {
      try? loop.register(networkChanges.descriptor, .readable) { [unowned self] _ in
        if networkChanges.hasChanged() { networkHasChanged() }
      }
    }
    sweep()
    happen(.timeCame)
    loop.run()
    // In this order: a program that finds no socket starts an agent, which must not wait for the lock.
    socketFile?.remove()
    close(listener)
    session.close()
  }

  /// Removes files that no transfer needs, now and once per day.
  private func sweep() {
    let parts = Set((queue.transfers.values + queue.abandoned.values.map(\.transfer)).compactMap(\.request.part))
    files.execute { [downloads] in RunningDownload.sweep(downloads, keeping: parts) }
    loop.schedule(after: .seconds(86_400)) { [self] in sweep() }
  }

  /// Ends soon. Running transfers are stopped, and continue with the next agent. Any thread.
  package func stop() {
    loop.execute { [self] in
      guard !isEnding else { return }
      isEnding = true
      loop.schedule(after: Self.stopLimit) { [self] in loop.stop() }
      happen(.shutdown)
      endIfStopped()
    }
  }

  // MARK: The end

  func endIfStopped() {
    if isEnding, running.isEmpty, abandons == 0, pending.isEmpty { loop.stop() }
  }

  var isIdle: Bool { queue.isIdle && peers.isEmpty && abandons == 0 && pending.isEmpty }

  func watchIdleness() {
    guard let limit = settings.idleLimit else { return }
    guard isIdle else {
      idleTimer.map { loop.cancel($0) }
      idleTimer = nil
      return
    }
    guard idleTimer == nil else { return }
    idleTimer = loop.schedule(after: limit) { [self] in
      idleTimer = nil
      // Accept programs that have just connected.
      acceptPeers()
      if isIdle { loop.stop() }
    }
  }
}
