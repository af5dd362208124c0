// The agent: the queue, its database, its socket, and the transfers that run.

internal import DiskFiles
package import EventLoops
internal import Glibc
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
  let location: AgentLocation
  let settings: Settings
  let database: TransferDatabase
  let listener: Int32
  /// The socket that this agent has made; nil for one of the service manager.
  let socketFile: AgentSocket.File?
  let session: UploadSession
  let files = BackgroundWorker()
  /// Looks at what programs hand in. They wait for that, and the digest of a large file takes a while.
  let examinations = BackgroundWorker()
  let networkChanges: NetworkChanges?
  /// Where downloads are that programs have not moved away yet.
  let downloads: String

  var queue: TransferQueue
  var peers: [ObjectIdentifier: AgentPeer] = [:]
  /// Who hears of a session's transfers: the latest program to ask. Of those of the command, everybody who asks.
  var watchers: [String: [AgentPeer]] = [:]
  /// What runs.
  var running: [Int64: RunningTransfer] = [:]
  /// How many servers are being asked to forget an upload, and parts removed.
  var abandons = 0
  /// What transfers have done and the database could not take, in the order in which it happened.
  var pending: [TransferQueue.Event] = []
  var databaseTimer: EventLoop.Timer?
  var databaseDelay = TransferAgent.databaseDelays.lowerBound
  var wakeTimer: EventLoop.Timer?
  var idleTimer: EventLoop.Timer?
  var progressTimer: EventLoop.Timer?
  var networkTimer: EventLoop.Timer?
  var isEnding = false
  var isAccepting = false
  var watchesNetwork = false

  /// How often programs that watch hear of progress.
  static let progressInterval = Duration.milliseconds(500)
  /// How long news of the network are awaited after the first.
  static let settlingTime = Duration.seconds(2)
  /// How long what runs may take to stop at the end. The server is asked where it stands in any case.
  static let stopLimit = Duration.seconds(5)
  /// How long programs wait when there is no descriptor for their connections.
  static let acceptPause = Duration.milliseconds(500)
  /// How long the agent waits before it asks a database again that took nothing.
  static let databaseDelays = Duration.seconds(1)...Duration.seconds(60)
  /// How long a server may take to forget a cancelled upload.
  static let abandonLimit = Duration.seconds(60)

  /// Opens the database, and then listens: whoever reaches the agent finds all transfers.
  ///
  /// - Throws: ``AgentError``. If another agent runs, ``AgentError/inUse(_:)``.
  package init(_ location: AgentLocation, _ settings: Settings = Settings()) throws(AgentError) {
    (self.location, self.settings) = (location, settings)
    downloads = location.directory + "/downloads"
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
    sweep()
    happen(.timeCame)
    loop.run()
    // In this order: whoever finds no socket starts an agent, which waits for no lock.
    socketFile?.remove()
    close(listener)
    session.close()
  }

  /// Removes files that no transfer needs any more, now and each day.
  private func sweep() {
    let parts = Set((queue.transfers.values + queue.abandoned.values.map(\.transfer)).compactMap(\.request.part))
    files.execute { [downloads] in RunningDownload.sweep(downloads, keeping: parts) }
    loop.schedule(after: .seconds(86_400)) { [self] in sweep() }
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
      // Whoever has just connected.
      acceptPeers()
      if isIdle { loop.stop() }
    }
  }
}
