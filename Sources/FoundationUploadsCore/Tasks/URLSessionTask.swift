// A task: the program's handle for a transfer.

internal import EventLoops
public import Foundation
public import FoundationNetworking
internal import TransferClient

/// Carries out a task's orders, which may come from any thread.
protocol TaskEngine: AnyObject, Sendable {
  func resume()
  func suspend()
  /// - Parameter handler: receives the data with which a new task can continue.
  func cancel(_ handler: (@Sendable (Data?) -> Void)?)
  /// The session accepts no new tasks, so the transfer fails as soon as it is resumed.
  func refuse()
}

/// A transfer of a ``URLSession``. It begins when it is resumed. All members may be used from any thread.
open class URLSessionTask: NSObject, @unchecked Sendable {
  /// The state of a task.
  public enum State: Int, Sendable {
    /// The transfer is in progress.
    case running = 0
    /// The transfer has not begun, or is paused.
    case suspended = 1
    /// The task was cancelled, and its delegate has not yet been notified of its completion.
    case canceling = 2
    /// The task has ended.
    case completed = 3
  }

  /// From 0 to 1. It has no effect.
  public static let defaultPriority: Float = 0.5
  /// From 0 to 1. It has no effect.
  public static let lowPriority: Float = 0.25
  /// From 0 to 1. It has no effect.
  public static let highPriority: Float = 0.75

  /// The mutable state, guarded by the task's lock.
  struct Facts {
    var state = State.suspended
    var currentRequest: URLRequest?
    var response: URLResponse?
    var error: (any Error)?
    var delegate: (any URLSessionTaskDelegate)?
    var bytesSent: Int64 = 0
    var bytesExpectedToSend = NSURLSessionTransferSizeUnknown
    var bytesReceived: Int64 = 0
    var bytesExpectedToReceive = NSURLSessionTransferSizeUnknown
    var clientExpectsToSend = NSURLSessionTransferSizeUnknown
    var clientExpectsToReceive = NSURLSessionTransferSizeUnknown
    var earliestBeginDate: Date?
    var text: String?
    var priority = URLSessionTask.defaultPriority
    /// How much of ``bytesSent`` was reported to the delegate.
    var bytesTold: Int64 = 0
    var isTelling = false
    /// The same for the bytes of a download.
    var bytesToldWritten: Int64 = 0
    var isTellingWritten = false
  }

  /// Unique within its session.
  public let taskIdentifier: Int
  /// The request with which the task was created. Nil for a task with unreadable resume data.
  public let originalRequest: URLRequest?
  /// The progress of the transfer: sent and received bytes of the expected ones. Cancelling it cancels the task.
  public let progress = Progress(parent: nil, userInfo: nil)

  /// Whether a completion handler gets the response instead of a delegate.
  let hasHandler: Bool
  /// The session's queue. A program may keep the task for longer than the session.
  private let delegateQueue: OperationQueue

  private let monitor = Monitor()
  private var facts = Facts()
  /// Nil once the task is over.
  private var transfer: (any TaskEngine)?

  /// - Parameter status: the status of a transfer that an earlier process has submitted to the agent.
  init(
    _ session: URLSession, _ request: URLRequest?, _ content: Transfer.Content, _ completion: Transfer.Completion,
    restoring status: TransferStatus? = nil
  ) {
    taskIdentifier = status.map { session.identifier(restoring: Int($0.task)) } ?? session.nextIdentifier()
    originalRequest = request
    hasHandler = !completion.isDelegate
    delegateQueue = session.delegateQueue
    super.init()
    facts.currentRequest = request
    facts.bytesExpectedToSend = content.byteCount ?? NSURLSessionTransferSizeUnknown
    progress.totalUnitCount = max(0, facts.bytesExpectedToSend)
    progress.isCancellable = true
    progress.cancellationHandler = { [weak self] in self?.cancel() }
    if let background = session.background {
      transfer = BackgroundTransfer(session, self, content, completion, background, restoring: status)
    } else {
      transfer = Transfer(session, self, content, completion)
    }
  }

  func change<Result>(_ body: (inout Facts) -> Result) -> Result { monitor.withLock { body(&facts) } }
  func look<Value>(_ path: KeyPath<Facts, Value>) -> Value { monitor.withLock { facts[keyPath: path] } }

  // MARK: The transfer's reports

  var engine: (any TaskEngine)? { monitor.withLock { transfer } }

  func isOver(_ error: (any Error)?) {
    let transfer = monitor.withLock {
      (facts.state, facts.error) = (.completed, error)
      return self.transfer.take()
    }
    if error == nil { updateProgress() }
    withExtendedLifetime(transfer) {}
  }

  func updateProgress() {
    let (done, expected, isOver, hasFailed) = monitor.withLock {
      (
        facts.bytesSent.addingSaturated(facts.bytesReceived),
        max(0, facts.bytesExpectedToSend).addingSaturated(max(0, facts.bytesExpectedToReceive)),
        facts.state == .completed, facts.error != nil
      )
    }
    // Without any length, it is indeterminate. It is finished only when the task is over, because a response may follow
    // the body.
    let total = isOver ? max(expected, done) : expected > 0 ? max(expected, done.addingSaturated(1)) : -1
    // `Progress` never finishes with a total of 0.
    let isEmptySuccess = total == 0 && !hasFailed
    progress.totalUnitCount = isEmptySuccess ? 1 : total
    progress.completedUnitCount = isEmptySuccess ? 1 : done
  }

  // MARK: Orders

  /// Starts the transfer, or continues it after ``suspend()``.
  open func resume() {
    let transfer = monitor.withLock {
      guard facts.state == .suspended else { return nil as (any TaskEngine)? }
      facts.state = .running
      return self.transfer
    }
    transfer?.resume()
  }

  /// Pauses sending until ``resume()``. The connection stays as long as the server permits.
  open func suspend() {
    let transfer = monitor.withLock {
      guard facts.state == .running else { return nil as (any TaskEngine)? }
      facts.state = .suspended
      return self.transfer
    }
    transfer?.suspend()
  }

  /// Ends the transfer with `URLError.cancelled` soon.
  open func cancel() { cancelTransfer()?.cancel(nil) }

  /// Cancels the transfer, and passes its resume data to `handler` on the delegate queue. A task that is over or
  /// cancelled has none.
  func cancelTransfer(_ handler: @escaping @Sendable (Data?) -> Void) {
    guard let transfer = cancelTransfer() else { return delegateQueue.addOperation { handler(nil) } }
    transfer.cancel(handler)
  }

  /// The transfer, to be cancelled; nil if the task is over or cancelled.
  private func cancelTransfer() -> (any TaskEngine)? {
    monitor.withLock {
      guard facts.state == .running || facts.state == .suspended else { return nil }
      facts.state = .canceling
      return transfer
    }
  }

  // MARK: Members

  /// The state of the task.
  open var state: State { look(\.state) }
  /// The current request. It differs from ``originalRequest`` after a redirect.
  open var currentRequest: URLRequest? { look(\.currentRequest) }
  /// The response, after its head has arrived.
  open var response: URLResponse? { look(\.response) }
  /// The reason why the task has failed.
  open var error: (any Error)? { look(\.error) }
  /// Receives the events of this task instead of the session's delegate. The session's delegate is called for methods
  /// that this one does not implement. It is nil after the last call about the task.
  open var delegate: (any URLSessionTaskDelegate)? {
    get { look(\.delegate) }
    set {
      // Released outside the lock, because its deinit may call this task.
      let old = change { facts in
        defer { facts.delegate = newValue }
        return facts.delegate
      }
      withExtendedLifetime(old) {}
    }
  }
  /// The number of bytes of the body that this machine's TCP has accepted.
  open var countOfBytesSent: Int64 { look(\.bytesSent) }
  /// The number of bytes of the body. -1 for a stream.
  open var countOfBytesExpectedToSend: Int64 { look(\.bytesExpectedToSend) }
  /// The number of received bytes of the response's body.
  open var countOfBytesReceived: Int64 { look(\.bytesReceived) }
  /// The expected number of bytes of the response's body. -1 if the server does not state it.
  open var countOfBytesExpectedToReceive: Int64 { look(\.bytesExpectedToReceive) }
  /// A hint: in a discretionary background session, small transfers run first.
  open var countOfBytesClientExpectsToSend: Int64 {
    get { look(\.clientExpectsToSend) }
    set { change { $0.clientExpectsToSend = newValue } }
  }
  /// A hint, like ``countOfBytesClientExpectsToSend``.
  open var countOfBytesClientExpectsToReceive: Int64 {
    get { look(\.clientExpectsToReceive) }
    set { change { $0.clientExpectsToReceive = newValue } }
  }
  /// The earliest start of the transfer, even if it is resumed earlier.
  open var earliestBeginDate: Date? {
    get { look(\.earliestBeginDate) }
    set { change { $0.earliestBeginDate = newValue } }
  }
  /// A text for the program's own use.
  open var taskDescription: String? {
    get { look(\.text) }
    set { change { $0.text = newValue } }
  }
  /// A hint without effect.
  open var priority: Float {
    get { look(\.priority) }
    set { change { $0.priority = newValue } }
  }
}

/// A task that delivers the body of the response as data.
open class URLSessionDataTask: URLSessionTask, @unchecked Sendable {}

/// A task that uploads a file, bytes or a stream.
open class URLSessionUploadTask: URLSessionDataTask, @unchecked Sendable {
  /// Continues an upload. If the data is unreadable, the task fails.
  convenience init(_ session: URLSession, resuming data: Data, _ completion: Transfer.Completion) {
    let record = UploadRecord(data)
    self.init(session, record?.urlRequest, record.map { .resumedUpload($0) } ?? .unusable, completion)
  }

  /// Cancels the upload, and passes resume data for a new task to `completionHandler` on the delegate queue. It is nil
  /// if the server cannot resume the upload.
  ///
  /// If the server has not yet reported whether it can, nothing more is sent, and the task waits for the report up to a
  /// second.
  open func cancel(byProducingResumeData completionHandler: @escaping @Sendable (Data?) -> Void) {
    cancelTransfer(completionHandler)
  }

  /// Cancels the upload.
  ///
  /// - Returns: resume data for a new task. Nil if the server cannot resume the upload.
  open func cancelByProducingResumeData() async -> Data? {
    await withCheckedContinuation { continuation in cancel { continuation.resume(returning: $0) } }
  }
}

/// A task that writes the body of the response to a file.
open class URLSessionDownloadTask: URLSessionTask, @unchecked Sendable {
  /// Continues a download. If the data is unreadable, the task fails.
  convenience init(_ session: URLSession, resuming data: Data, _ completion: Transfer.Completion) {
    let record = DownloadRecord(data)
    self.init(session, record?.urlRequest, record.map { .resumedDownload($0) } ?? .unusable, completion)
  }

  /// Cancels the download, and passes resume data for a new task to `completionHandler` on the delegate queue. It is
  /// nil if the server cannot resume the download.
  open func cancel(byProducingResumeData completionHandler: @escaping @Sendable (Data?) -> Void) {
    cancelTransfer(completionHandler)
  }

  /// Cancels the download.
  ///
  /// - Returns: resume data for a new task. Nil if the server cannot resume the download.
  open func cancelByProducingResumeData() async -> Data? {
    await withCheckedContinuation { continuation in cancel { continuation.resume(returning: $0) } }
  }
}
