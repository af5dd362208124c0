// The session: settings, delegate, queue, and one network thread for all of its tasks.

internal import DiskFiles
internal import EventLoops
public import Foundation
internal import TransferClient
internal import UploadClient

/// Apple's `URLSession` for uploads and downloads, implemented with Sluice's engine.
///
/// All tasks of a session share one network thread, which starts with the first of them. All delegate methods and
/// completion handlers are called on ``delegateQueue``. All members may be used from any thread.
open class URLSession: NSObject, @unchecked Sendable {
  /// The handling of a response.
  public enum ResponseDisposition: Int, Sendable {
    /// Cancel the task.
    case cancel = 0
    /// Receive the body.
    case allow = 1
  }

  /// The response to a challenge.
  public enum AuthChallengeDisposition: Int, Sendable {
    /// Send the credential.
    case useCredential = 0
    /// Act as without a delegate.
    case performDefaultHandling = 1
    /// Cancel the task.
    case cancelAuthenticationChallenge = 2
    /// Use the response as the result.
    case rejectProtectionSpace = 3
  }

  private static let common = URLSession(configuration: .default)
  /// A session without a delegate. It cannot be invalidated.
  open class var shared: URLSession { common }

  private let settings: URLSessionConfiguration
  /// A copy of the session's settings.
  // The copy of a configuration is a configuration.
  open var configuration: URLSessionConfiguration { settings.copy() as? URLSessionConfiguration ?? settings }
  /// The queue on which delegates and completion handlers are called.
  public let delegateQueue: OperationQueue

  /// Writes downloaded bytes.
  let disk = BackgroundWorker()

  /// The background session, if the session has an identifier.
  let background: BackgroundSession?

  private let monitor = Monitor()
  private var keptDelegate: (any URLSessionDelegate)?
  private var tasks: [Int: URLSessionTask] = [:]
  /// The identifiers of tasks whose creation is not yet reported. Until then, the session does not cancel them, and
  /// does not end.
  private var newTasks: Set<Int> = []
  private var lastIdentifier = 0
  private var isInvalid = false
  private var cancelsTasks = false
  private var isOver = false
  private var startedEngine: UploadSession?
  private var text: String?

  /// Creates a session without a delegate.
  ///
  /// - Parameter configuration: copied.
  public convenience init(configuration: URLSessionConfiguration) {
    self.init(configuration: configuration, delegate: nil, delegateQueue: nil)
  }

  /// Creates a session.
  ///
  /// - Parameters:
  ///   - configuration: copied.
  ///   - delegate: kept until the session is invalidated and its last task has ended.
  ///   - queue: the queue on which delegates and completion handlers are called. Nil creates a serial queue.
  public init(
    configuration: URLSessionConfiguration, delegate: (any URLSessionDelegate)?, delegateQueue queue: OperationQueue?
  ) {
    settings = configuration.copy() as? URLSessionConfiguration ?? configuration
    keptDelegate = delegate
    let settings = settings
    background = settings.identifier.map {
      BackgroundSession(
        identifier: $0, settings.agentLocation ?? AgentLocation.current, program: settings.agentExecutable)
    }
    if let queue {
      delegateQueue = queue
    } else {
      delegateQueue = OperationQueue()
      delegateQueue.maxConcurrentOperationCount = 1
      delegateQueue.name = "FoundationUploads.URLSession"
    }
    super.init()
    if let background { beginBackground(background) }
  }

  deinit { background?.finish() }

  /// The delegate from the initializer. Nil after the session has become invalid.
  open var delegate: (any URLSessionDelegate)? { monitor.withLock { keptDelegate } }

  /// A human-readable name.
  open var sessionDescription: String? {
    get { monitor.withLock { text } }
    set { monitor.withLock { text = newValue } }
  }

  // MARK: Tasks

  /// The network thread, started when it is first needed. Nil if the session has ended with all of its tasks.
  ///
  /// - Throws: if the system refuses a thread or descriptors.
  func engine() throws -> UploadSession? {
    try monitor.withLock {
      if let startedEngine { return startedEngine }
      guard !isOver || !tasks.isEmpty else { return nil }
      let engine = try UploadSession()
      startedEngine = engine
      return engine
    }
  }

  /// A number for a new task.
  func nextIdentifier() -> Int {
    monitor.withLock {
      lastIdentifier += 1
      return lastIdentifier
    }
  }

  /// The number that an earlier process has assigned, or another one if two processes have assigned the same.
  func identifier(restoring identifier: Int) -> Int {
    monitor.withLock {
      let isTaken = tasks[identifier] != nil
      lastIdentifier = max(lastIdentifier, identifier)
      if isTaken { lastIdentifier += 1 }
      return isTaken ? lastIdentifier : identifier
    }
  }

  /// Whether new tasks can begin.
  var acceptsTasks: Bool { monitor.withLock { !isInvalid } }

  /// The delegate for calls about tasks. Nil as soon as the session's last call is in the queue.
  var delegateOfTasks: (any URLSessionDelegate)? { monitor.withLock { isOver ? nil : keptDelegate } }

  /// - Parameter isNew: whether ``endCreation(of:)`` follows.
  /// - Returns: false if the session accepts no new tasks, and the task must be refused.
  @discardableResult
  func begin(_ task: URLSessionTask, isNew: Bool = false) -> Bool {
    monitor.withLock {
      tasks[task.taskIdentifier] = task
      if isNew { newTasks.insert(task.taskIdentifier) }
      return !isInvalid
    }
  }

  /// The call about the creation of a task is in the queue, so other calls may follow.
  ///
  /// - Returns: whether the session was cancelled meanwhile, and the task must be cancelled with it.
  func endCreation(of task: URLSessionTask) -> Bool {
    let isCancelled = monitor.withLock {
      newTasks.remove(task.taskIdentifier)
      return cancelsTasks
    }
    endIfInvalid()
    return isCancelled
  }

  /// A task is over, and its last call is in the queue.
  func end(_ task: URLSessionTask) {
    monitor.withLock { tasks[task.taskIdentifier] = nil }
    endIfInvalid()
  }

  /// Tasks that are not over.
  var openTasks: [URLSessionTask] {
    monitor.withLock {
      tasks.values.filter { !newTasks.contains($0.taskIdentifier) }.sorted { $0.taskIdentifier < $1.taskIdentifier }
    }
    .filter { $0.state != .completed }
  }

  /// Tasks that are neither over nor cancelled.
  private var activeTasks: [URLSessionTask] { openTasks.filter { $0.state != .canceling } }

  /// Calls `work` on the delegate queue.
  func call(_ work: @escaping @Sendable () -> Void) { delegateQueue.addOperation(work) }

  /// Calls `completionHandler` with the tasks that have neither ended nor been cancelled.
  open func getAllTasks(completionHandler: @escaping @Sendable ([URLSessionTask]) -> Void) {
    let tasks = activeTasks
    call { completionHandler(tasks) }
  }

  /// The tasks that have neither ended nor been cancelled.
  open var allTasks: [URLSessionTask] { get async { activeTasks } }

  /// Calls `completionHandler` with the tasks that have neither ended nor been cancelled, by kind.
  open func getTasksWithCompletionHandler(
    _ completionHandler:
      @escaping @Sendable ([URLSessionDataTask], [URLSessionUploadTask], [URLSessionDownloadTask]) -> Void
  ) {
    let tasks = activeTasks
    call {
      let uploads = tasks.compactMap { $0 as? URLSessionUploadTask }
      let data = tasks.compactMap { $0 is URLSessionUploadTask ? nil : $0 as? URLSessionDataTask }
      completionHandler(data, uploads, tasks.compactMap { $0 as? URLSessionDownloadTask })
    }
  }

  // MARK: Invalidation

  /// Accepts no new tasks, and ends the session after its last task.
  open func finishTasksAndInvalidate() {
    guard self !== Self.common else { return }
    monitor.withLock { isInvalid = true }
    endIfInvalid()
  }

  /// Cancels all tasks, and ends the session.
  open func invalidateAndCancel() {
    guard self !== Self.common else { return }
    monitor.withLock { (isInvalid, cancelsTasks) = (true, true) }
    for task in openTasks { task.cancel() }
    endIfInvalid()
  }

  private func endIfInvalid() {
    let isLast = monitor.withLock {
      guard isInvalid, tasks.isEmpty, newTasks.isEmpty else { return false }
      // The engine ends its thread by itself when it is no longer referenced. A task that the session refuses may have
      // started another.
      startedEngine = nil
      defer { isOver = true }
      return !isOver
    }
    guard isLast else { return }
    background?.finish()
    call { [self] in
      delegate?.urlSession(self, didBecomeInvalidWithError: nil)
      // Released outside the lock, because its deinit may call this session.
      let old = monitor.withLock { keptDelegate.take() }
      withExtendedLifetime(old) {}
    }
  }
}
