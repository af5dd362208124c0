// A download from its first request to the file's final name: the shell around the state machine.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
public import LiveStreaming
public import UploadClient

/// Downloads a resource into a file, through any number of outages.
///
/// The bytes go into a part beside the file. The part gets the file's name when the download is complete, on disk, and
/// verified if the server sends a digest. After an outage, the rest is requested with `Range` and `If-Range`. A
/// resource that has changed is downloaded again from its beginning.
///
///     let download = FileDownload(.init(request: UploadRequest(url: "https://example.com/film.mkv"), to: "film.mkv"))
///     download.start(on: try UploadSession()) { event in print(event) }
///
/// All methods may be called from any thread. Events come on the session's thread, and the handler must not block.
public final class FileDownload: @unchecked Sendable {
  /// The source, the destination and the settings of a download.
  public struct Configuration: Sendable {
    /// The source. Its method and body are ignored.
    public var request: UploadRequest
    /// The destination.
    public var output: Output
    /// The data of an earlier download to continue. Nil to start a new one.
    public var resumeData: DownloadResumeData?
    /// Whether an existing file of the name is replaced.
    public var replaces = false
    /// The delays between attempts, and the time to give up.
    public var retry = RetryPolicy()
    /// The interval of ``DownloadEvent/progress(_:)``. Nil means never.
    public var progressInterval: Duration?
    /// Called before each request for the token. Nil uses the token of the request.
    public var bearerToken: (@Sendable () -> String?)?
    /// The permissions of a new file, regardless of the process's umask; nil for the usual ones.
    package var permissions: UInt32?
    /// Stores a checkpoint: when the part exists, before the first byte of each representation is written, and at
    /// intervals. Called on a thread of the download, which may block: nothing is written meanwhile, and the server is
    /// paused. Returns false if it cannot be stored. If nothing may be written without it, the download then ends with
    /// `EAGAIN`.
    package var record: (@Sendable (DownloadCheckpoint) -> Bool)?

    /// Creates a download to a file, whose part is beside it.
    public init(request: UploadRequest, to path: String) {
      self.request = request
      output = .file(path, part: path + ".part")
    }

    /// Creates a download to a file, a part, or a descriptor.
    public init(request: UploadRequest, output: Output) { (self.request, self.output) = (request, output) }
  }

  /// The destination.
  public enum Output: Equatable, Sendable {
    /// A file, and the path of its part in the same file system.
    case file(String, part: String)
    /// A file that keeps the name of its part.
    case part(String)
    /// A descriptor of the caller, which is written to like a pipe.
    case descriptor(Int32)

    var partPath: String? {
      switch self {
      case .file(_, let part), .part(let part): part
      case .descriptor: nil
      }
    }
  }

  /// What happens to the current response.
  enum Reception {
    case nothing
    case content
    /// Not the download's content, but kept for its explanation.
    case other(HTTPResponse)
  }

  static let redirectLimit = 16

  let configuration: Configuration
  /// Reads, writes and syncs, so that the network thread does not block.
  let worker = BackgroundWorker()

  // MARK: On the session's thread

  var session: UploadSession?
  var handler: @Sendable (DownloadEvent) -> Void = { _ in }
  var machine = DownloadStateMachine()
  var clock: RetryClock
  var file: PartialFile?
  var running: UploadTask?
  /// The current request.
  var sent: UploadRequest
  /// Counts requests, so that events of an earlier one are ignored.
  var number = 0
  var redirects = 0
  var attempt = 0
  var reception = Reception.nothing
  var otherBody: [UInt8] = []
  /// How often the file is still to be truncated.
  private var truncationCount = 0
  /// Reported after that.
  private var heldResumeData: DownloadResumeData?
  var otherCount = 0
  /// The head of the last response with content.
  var response: HTTPResponse?
  /// Where that content begins in the file.
  var contentStart: UInt64 = 0
  var reach = DownloadReach()
  var resumedFrom: UInt64 = 0
  var outages = OutageCount()
  var isConnected = false
  /// Whether the last request has never had a connection, so that the address of the server may have changed.
  var lacksConnection = false
  /// Runs until the next attempt.
  var retryTimer: EventLoop.Timer?
  var progressTimer: EventLoop.Timer?
  /// How many bytes there were at the last checkpoint.
  var recorded: UInt64 = 0
  var startedAt = MonotonicInstant.now
  /// Whether the end is decided, and only the disk is still working.
  var isEnding = false
  private enum Place {
    /// Before the start, and after the end.
    case none
    /// ``start(on:_:)`` has not yet decided which thread it is. This work waits for the decision.
    case starting([@Sendable (FileDownload) -> Void])
    /// Only the session's thread ends this.
    case session(UploadSession, closing: UInt64)
    /// The session is closed. The worker does the rest, and owns the network thread's state.
    case worker
  }

  /// The thread that owns the download. Any thread.
  private let place = Lock(Place.none)
  private let hasBegun = Lock(false)

  /// Creates a download that has not started. Nothing is opened or sent before ``start(on:_:)``.
  public init(_ configuration: Configuration) {
    self.configuration = configuration
    clock = RetryClock(policy: configuration.retry, isDownload: true)
    sent = configuration.request
  }

  /// Starts the download. If the session is closed, it ends at once. Call it only once.
  public func start(on session: UploadSession, _ handler: @escaping @Sendable (DownloadEvent) -> Void) {
    let isFirst = hasBegun.withLock { begun in
      defer { begun = true }
      return !begun
    }
    precondition(isFirst, "a FileDownload can be started only once")
    // First, because the session may close at any time from here on.
    (self.session, self.handler, startedAt) = (session, handler, .now)
    place.withLock { $0 = .starting([]) }
    guard let closing = session.whenClosing({ [weak self] in self?.sessionCloses() }) else {
      // Its thread may still run, but has no part in this download.
      return sessionCloses()
    }
    place.withLock { place in
      // Otherwise, the session has closed since.
      guard case .starting(let waiting) = place else { return }
      place = .session(session, closing: closing)
      for work in waiting { execute(work, on: session) }
      execute({ if !$0.isEnding { $0.begin() } }, on: session)
    }
  }

  /// Ends the download. The part stays if it can be continued.
  public func cancel() {
    onLoop { $0.fail(DownloadError(.cancelled, "cancelled")) }
  }

  /// Makes the next attempt now, if the download is waiting for it.
  package func retryNow() {
    onLoop { download in
      guard !download.isEnding, let timer = download.retryTimer, let loop = download.session?.loop else { return }
      loop.cancel(timer)
      download.retryTimer = nil
      download.send()
    }
  }

  /// Calls `body` with the progress on a thread of the download. Does nothing before the start or after the end.
  package func withProgress(_ body: @escaping @Sendable (DownloadProgress) -> Void) { onLoop { body($0.progress) } }

  /// Any thread. Does nothing before the start or after the end.
  func onLoop(_ work: @escaping @Sendable (FileDownload) -> Void) {
    let isForWorker = place.withLock { place in
      switch place {
      case .none: break
      case .starting(let waiting): place = .starting(waiting + [work])
      case .session(let session, _): execute(work, on: session)
      case .worker: return true
      }
      return false
    }
    // Without the lock, because the worker runs it here and now if no thread can be started.
    if isForWorker { worker.execute { [self] in work(self) } }
  }

  /// Runs `work` on the session's thread, or on the worker's if the session closes before.
  private func execute(_ work: @escaping @Sendable (FileDownload) -> Void, on session: UploadSession) {
    session.loop.execute { [self] in
      let isOwner = place.withLock { place in
        if case .session = place { return true }
        return false
      }
      if isOwner { work(self) } else { onLoop(work) }
    }
  }

  /// On the session's thread. If the session was closed before the start, on the thread of the start, because no other
  /// thread uses the download yet.
  private func sessionCloses() {
    // Before the worker owns the download, because this stops the request and the timers.
    fail(DownloadError(.cancelled, "cancelled: the session was closed"))
    let waiting = place.withLock { place -> [@Sendable (FileDownload) -> Void] in
      var waiting: [@Sendable (FileDownload) -> Void] = []
      switch place {
      // It has ended.
      case .none: return waiting
      case .starting(let work): waiting = work
      case .session, .worker: break
      }
      place = .worker
      return waiting
    }
    for work in waiting { onLoop(work) }
  }

  /// Nothing more happens.
  func leave() {
    session = nil
    let left = place.withLock { place in
      defer { place = .none }
      return place
    }
    if case .session(let session, let closing) = left { session.forgetClosing(closing) }
  }

  // MARK: Beginning

  private func begin() {
    let (configuration, worker) = (configuration, worker)
    worker.execute { [self] in
      let opened: Result<PartialFile, SystemError>
      do throws(SystemError) {
        opened = .success(try Self.open(configuration, worker))
      } catch {
        opened = .failure(error)
      }
      onLoop { $0.began(opened) }
    }
  }

  private static func open(
    _ configuration: Configuration, _ worker: BackgroundWorker
  ) throws(SystemError) -> PartialFile {
    let output = configuration.output
    if case .descriptor(let descriptor) = output { return PartialFile(streaming: descriptor, worker) }
    if let data = configuration.resumeData {
      do throws(SystemError) {
        let file = try PartialFile(resuming: data, worker)
        // If a later sync fails, these bytes still count. If this one fails, the file is empty and accepts no more.
        try? file.synchronize()
        return file
      } catch {
        if error.code != ENOENT { throw error }
      }
    }
    // Before the first request: the new name would be refused after the last byte.
    var status = stat()
    if case .file(let path, _) = output, !configuration.replaces, lstat(path, &status) == 0 {
      throw SystemError(operation: "download to \(path)", code: EEXIST)
    }
    // For one that keeps its name, the permitted readers are unknown.
    let usual: mode_t = if case .file = output { 0o666 } else { 0o600 }
    return try PartialFile(
      making: output.partPath ?? "", mode: configuration.permissions ?? usual,
      isExact: configuration.permissions != nil, worker)
  }

  private func began(_ opened: Result<PartialFile, SystemError>) {
    guard !isEnding else {
      guard case .success(let file) = opened else { return }
      if file.written == 0 { file.remove() }
      // Closing alone is not enough: a child that another thread is starting has the descriptor until its exec.
      file.unlock()
      return
    }
    switch opened {
    case .failure(let error): fail(Self.fileError(error))
    case .success(let file):
      self.file = file
      if !file.isStream { handler(.opened(path: file.path, inode: file.inode, birth: file.birth)) }
      if let data = configuration.resumeData, file.written == data.byteCount, data.inode == file.inode {
        machine = DownloadStateMachine(resuming: data)
        (resumedFrom, reach) = (data.byteCount, DownloadReach(resuming: data.byteCount))
      }
      // From here on, a later process knows that the part is not some other file.
      record(isSynchronized: file.written > 0)
      if let interval = configuration.progressInterval { tellProgress(every: interval) }
      send()
    }
  }

  static func fileError(_ error: SystemError) -> DownloadError {
    switch error.code {
    case EEXIST:
      DownloadError(.exists, "\(error.operation): a file of that name exists. Choose another name.", systemError: error)
    default: DownloadError(.file, "\(error.operation): \(error.reason)", systemError: error)
    }
  }

  // MARK: Requests

  /// Requests the missing bytes, at the URL of the download.
  func send() {
    redirects = 0
    send(configuration.request)
  }

  func send(_ target: UploadRequest) {
    guard !isEnding, let session else { return }
    let before = machine.count
    var request = target
    if request.bearerToken != nil, let token = configuration.bearerToken?() { request.bearerToken = token }
    request.method = "GET"
    request.tellsResponse = true
    request.looksUpAgain = lacksConnection
    request.fields.addDefault("Accept-Encoding", "identity")
    request.fields.addDefault("Want-Repr-Digest", "sha-256=1")
    request.fields.append(contentsOf: machine.begin())
    if machine.count < before, !discard(.unknown, before) { return }
    sent = target
    (number, attempt) = (number + 1, attempt + 1)
    (reception, otherBody, otherCount) = (.nothing, [], 0)
    handler(.connecting(offset: machine.count, attempt: attempt))
    do throws(UploadError) {
      running = try session.upload(request, body: .none) { [self, number] event in
        if self.number == number { happened(event) }
      }
      lacksConnection = true
    } catch {
      fail(DownloadError(error.kind == .cancelled ? .cancelled : .invalidRequest, error.description))
    }
  }

  /// Discards the existing bytes. Returns false if they cannot be taken back.
  func discard(_ reason: DownloadRestart, _ count: UInt64) -> Bool {
    guard count > 0 else { return true }
    guard file?.isStream != true else {
      fail(
        DownloadError(.protocolBroken, "the download cannot start over, because its beginning was written: \(reason)"))
      return false
    }
    // None of the earlier bytes remain.
    resumedFrom = 0
    reach.startedOver(reason)
    // In this order: the record of the earlier bytes must not describe those that follow.
    handler(.startedOver(reason, discarded: count))
    truncationCount += 1
    file?.truncate(to: 0) { [self] in onLoop { $0.truncated() } }
    return true
  }

  /// The disk has discarded bytes.
  private func truncated() {
    truncationCount -= 1
    guard !isEnding, truncationCount == 0, let data = heldResumeData else { return }
    heldResumeData = nil
    handler(.resumable(data))
  }

  /// Reports the data with which a later process can resume, once the file contains no bytes of an earlier version.
  func tellResumable(_ data: DownloadResumeData) {
    if truncationCount > 0 { heldResumeData = data } else { handler(.resumable(data)) }
  }

  func stopRequest() {
    heldResumeData = nil
    number += 1
    running?.cancel()
    (running, reception, isConnected) = (nil, .nothing, false)
  }

  // MARK: Progress

  func tellProgress(every interval: Duration) {
    progressTimer = session?.loop.schedule(after: interval) { [self] in
      guard !isEnding else { return }
      handler(.progress(progress))
      tellProgress(every: interval)
    }
  }

  var progress: DownloadProgress {
    DownloadProgress(
      written: file?.written ?? 0, length: machine.length, elapsed: .now - startedAt, isConnected: isConnected,
      outageCount: outages.count)
  }
}
