// The work of a task: one request after another, until there is a response for the program.

internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import LiveStreaming
internal import ResumableUploads
internal import UploadClient

/// Owned by the session's network thread, except for its orders, which may come from any thread; unchecked for that
/// reason. It retains its task and its session until it is over.
final class Transfer: TaskEngine, @unchecked Sendable {
  /// The body of the request.
  enum Content {
    case none
    case bytes(Data)
    case file(URL)
    /// The delegate provides it.
    case stream
    /// Part of the request. After a redirect, the delegate provides another.
    case givenStream(InputStream)
    case resumedUpload(UploadRecord)
    case resumedDownload(DownloadRecord)
    /// There is none, because the resume data is unreadable, or the session accepts no tasks.
    case unusable

    static func body(of request: URLRequest) -> Content {
      if let stream = request.httpBodyStream { return .givenStream(stream) }
      guard let body = request.httpBody, !body.isEmpty else { return .none }
      return .bytes(body)
    }

    /// Whether it is the body of a first request.
    var isBody: Bool {
      switch self {
      case .bytes, .file, .stream, .givenStream: true
      case .none, .resumedUpload, .resumedDownload, .unusable: false
      }
    }

    var isUnusable: Bool { if case .unusable = self { true } else { false } }

    var byteCount: Int64? {
      switch self {
      case .none: 0
      case .bytes(let data): Int64(data.count)
      case .file(let url):
        (try? FileManager.default.attributesOfItem(atPath: url.path))?[.size].flatMap { ($0 as? NSNumber)?.int64Value }
      case .stream, .givenStream, .resumedUpload, .resumedDownload, .unusable: nil
      }
    }
  }

  /// The receiver of the end.
  enum Completion {
    case delegate
    case data(URLSession.DataHandler)
    case download(URLSession.DownloadHandler)

    var isDelegate: Bool { if case .delegate = self { true } else { false } }
  }

  let session: URLSession
  let task: URLSessionTask
  var content: Content
  let completion: Completion
  let settings: URLSessionConfiguration

  // MARK: On the network thread

  /// Set by the first order.
  var engine: UploadSession?
  /// The current request, without the fields of a protocol.
  var request: URLRequest
  var isStarted = false
  var isSuspended = false
  var isOver = false
  /// Counts requests, so that events of an earlier one are ignored.
  var number = 0
  /// Counts questions to the program, each of which has one answer.
  var questions = 0
  var running: UploadTask?
  /// The request that ``running`` sends.
  var sent: UploadRequest?
  /// The uploaded file, which is in memory for bytes.
  var file: UploadFile?
  var memory: MemoryFile?
  /// The version in which resumption is offered; nil once the server has refused the oldest one.
  var offered: InteropVersion? = .newest
  /// The URL at which the server has announced that the upload can be resumed.
  var announced: String?
  var streamer: LiveStreamer?
  var source: InputStreamSource?
  var feed: StreamFeed?
  /// What is known about the running stream.
  var streamFacts = StreamFacts()
  /// The state of a stream that is resumed with resume data.
  var resumption: StreamResumption?
  /// Bytes of the body before those that ``running`` sends, as far as this task has sent them.
  var sentBefore: UInt64 = 0
  var redirects = 0
  /// Whether a redirect has led to another origin, which must not receive secrets of the first.
  var isAtOtherOrigin = false
  var failedChallenges = 0
  /// Whether the first request was sent, or was about to be.
  var hasBegun = false
  var hasConnected = false
  var hasToldWaiting = false
  /// When the server could not be reached for the first time.
  var outageStart: MonotonicInstant?
  var timers: [EventLoop.Timer] = []
  /// The metrics of finished requests.
  var transactions: [URLSessionTaskTransactionMetrics] = []
  /// When the task was resumed for the first time.
  var resumeDate: Date?
  /// How many redirects were followed.
  var redirectCount = 0
  /// What the response is waiting for.
  var pending = Pending.nothing
  /// Bytes of a response that is waiting, and the end of its request.
  var held: [[UInt8]] = []
  var heldByteCount = 0
  var heldEnd: Result<UploadTask.Outcome, UploadError>?
  /// Bytes of responses that the program or the disk has not taken yet.
  let intake = Intake()
  /// The response's body, for a completion handler.
  var received = Data()
  /// The handler that waits for resume data.
  var resumeHandler: (@Sendable (Data?) -> Void)?
  var download: DownloadFile?
  /// Waits until all received bytes of the download are written.
  var afterWriting: (() -> Void)?

  /// What a response is waiting for.
  enum Pending {
    case nothing
    /// Whether to follow a redirect or to answer a challenge. The program is asked when the response is complete, or
    /// long.
    case redirect(HTTPResponse, URLRequest)
    case challenge(HTTPResponse, BasicChallenge)
    /// The program has been asked.
    case decision(HTTPResponse)
    /// Nothing. The request is sent again with an older version of the protocol.
    case otherVersion(HTTPResponse)
    /// Nothing. The response reports an outage, and the resumption is tried again.
    case outage(HTTPResponse)
    /// Nothing. The response is a success although the upload is not, so the program does not receive it.
    case refused(URLError)
  }

  init(_ session: URLSession, _ task: URLSessionTask, _ content: Content, _ completion: Completion) {
    (self.session, self.task, self.content, self.completion) = (session, task, content, completion)
    settings = session.configuration
    // A missing request is replaced, and the start then fails with an error.
    request = task.originalRequest ?? URLRequest(url: URL(fileURLWithPath: "/"))
    switch content {
    case .resumedUpload(let record): isAtOtherOrigin = record.request.isAtOtherOrigin ?? false
    case .resumedDownload(let record): isAtOtherOrigin = record.request.isAtOtherOrigin ?? false
    default: break
    }
  }

  /// The session accepts no new tasks.
  func refuse() { content = .unusable }

  // MARK: Orders, from any thread

  func resume() {
    onLoop { [self] in
      guard !isOver else { return }
      isSuspended = false
      if isStarted {
        running?.resume()
        streamer?.resume()
      } else {
        (isStarted, resumeDate) = (true, Date())
        start()
      }
    }
  }

  func suspend() {
    onLoop { [self] in
      guard !isOver else { return }
      isSuspended = true
      running?.suspend()
      streamer?.suspend()
    }
  }

  /// - Parameter handler: receives the data with which a new task can continue.
  func cancel(_ handler: (@Sendable (Data?) -> Void)?) {
    onLoop { [self] in
      guard !isOver else { return session.call { handler?(nil) } }
      guard let handler else { return end(URLError(.cancelled, request.url)) }
      produceResumeData(handler)
    }
  }

  /// Runs `work` on the network thread. Without that thread, the transfer has failed.
  func onLoop(_ work: @escaping @Sendable () -> Void) {
    do {
      // After the session's end, an order finds only that the transfer is over.
      guard let engine = try session.engine() else { return work() }
      engine.loop.execute { [self] in
        if !isOver { self.engine = engine }
        work()
      }
    } catch {
      end(URLError(.unknown, request.url, "cannot start the network thread: \(error)"))
      // It finds that the transfer is over.
      work()
    }
  }

  func after(_ delay: TimeInterval, _ work: @escaping () -> Void) {
    guard let loop = engine?.loop else { return }
    timers.append(loop.schedule(after: .milliseconds(Int64(max(0, min(delay, 1e10)) * 1000)), work))
  }

  // MARK: Start and end

  private func start() {
    guard !isOver else { return }
    if let date = task.earliestBeginDate, date.timeIntervalSinceNow > 0, !content.isUnusable {
      return after(date.timeIntervalSinceNow) { [unowned self] in
        begin()
      }
    }
    begin()
  }

  private func begin() {
    guard !isOver else { return }
    hasBegun = true
    after(settings.timeoutIntervalForResource) { [unowned self] in
      fail(URLError(.timedOut, request.url, "the task took longer than \(settings.timeoutIntervalForResource) s"))
    }
    send()
  }

  /// Ends with an error, and with resume data if available.
  func fail(_ error: URLError) {
    guard download == nil else {
      return stopDownload { [unowned self] in end(error.with($0?.data, URLError.ResumeKey.download)) }
    }
    end(error.with(uploadRecord()?.data, URLError.ResumeKey.upload))
  }

  /// The final step.
  func end(_ error: URLError?) {
    guard !isOver else { return }
    isOver = true
    number += 1
    for timer in timers { engine?.loop.cancel(timer) }
    timers = []
    abortRunning()
    // In this order, because a source that ends first would complete the body on a plain server.
    streamer?.cancelNow()
    source?.close(failure: error?.localizedDescription)
    feed?.close(failure: error?.localizedDescription)
    (streamer, source, feed, file, memory) = (nil, nil, nil, nil, nil)
    afterWriting = nil
    task.isOver(error)
    if let handler = resumeHandler.take() {
      let information = error?.userInfo
      let data = information?[URLError.ResumeKey.download] ?? information?[URLError.ResumeKey.upload]
      session.call { [data = data as? Data] in handler(data) }
    }
    tellEnd(error)
    // A program may keep the task for longer than its session.
    engine = nil
    // After all calls about the task, because the session's own last call may follow.
    session.end(task)
  }

  private func tellEnd(_ error: URLError?) {
    let (session, task, response) = (session, task, task.response)
    let delegate = taskDelegate
    // Now, because the session may be over when the call comes.
    let downloadDelegate = session.downloadDelegate(of: task)
    let metrics = delegate == nil ? nil : metrics
    let tellMetrics: @Sendable () -> Void = {
      if let metrics { delegate?.urlSession(session, task: task, didFinishCollecting: metrics) }
    }
    let file = download.take()
    let place = error == nil ? file?.url : nil
    // The file of resume data stays, and a task that continues with it may exist soon.
    let isWanted = error?.userInfo[URLError.ResumeKey.download] != nil
    if isWanted { file?.close() }
    // Not earlier, because a task with older resume data must not change a file that the program moves.
    let remove: @Sendable () -> Void = {
      guard let file, file.isOwned else { return }
      try? FileManager.default.removeItem(at: file.url)
      file.close()
    }
    let data = error == nil ? received : nil
    session.call { [completion] in
      switch completion {
      case .data(let handler):
        tellMetrics()
        handler(data, error == nil ? response : nil, error)
      case .download(let handler):
        tellMetrics()
        handler(place, response, error)
        remove()
      case .delegate:
        if let place, let task = task as? URLSessionDownloadTask {
          downloadDelegate?.urlSession(session, downloadTask: task, didFinishDownloadingTo: place)
        }
        remove()
        tellMetrics()
        delegate?.urlSession(session, task: task, didCompleteWithError: error)
      }
      task.delegate = nil
    }
  }

  // MARK: The delegate

  var taskDelegate: (any URLSessionTaskDelegate)? { session.taskDelegate(of: task) }

  /// Asks the program something. Its first answer counts, unless the transfer has already continued.
  func ask<Answer: Sendable>(
    _ question: @escaping @Sendable (@escaping @Sendable (Answer) -> Void) -> Void,
    then next: @escaping @Sendable (Answer) -> Void
  ) {
    questions += 1
    let asked = questions
    session.call { [self] in
      question { answer in
        self.onLoop {
          guard !self.isOver, self.questions == asked else { return }
          self.questions += 1
          next(answer)
        }
      }
    }
  }

  func noteSent(_ count: UInt64) { session.noteSent(count, of: task) }

  /// The server has read the whole request. After a redirect, that may be a GET without the body.
  func noteAllSent() {
    if case .none = content { return }
    noteSent(UInt64(clamping: task.countOfBytesExpectedToSend))
  }

  func tellInterim(_ response: HTTPResponse) {
    guard let delegate = taskDelegate, let url = request.url, let response = HTTPURLResponse.make(response, url) else {
      return
    }
    session.call { [session, task] in
      delegate.urlSession(session, task: task, didReceiveInformationalResponse: response)
    }
  }
}
