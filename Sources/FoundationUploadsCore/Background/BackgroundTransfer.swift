// A task of a background session, which the agent performs.

internal import Downloads
internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import LiveStreaming
internal import TransferClient
internal import UploadClient

/// The connection between a task and the agent. Orders may come from any thread.
final class BackgroundTransfer: TaskEngine, @unchecked Sendable {
  let session: URLSession
  let task: URLSessionTask
  let content: Transfer.Content
  let completion: Transfer.Completion
  let background: BackgroundSession

  /// Identifies the transfer to the agent and the session.
  let key: String
  /// Whether a redirect has led there from another origin, whose secrets are not sent.
  let isAtOtherOrigin: Bool

  private let monitor = Monitor()
  /// The agent's number; nil until it has accepted the transfer.
  private var id: Int64?
  private var isSubmitted = false
  private var isSuspended = false
  private var isCancelled = false
  private var isOver = false
  private var isRefused = false
  private var hasToldWaiting = false
  /// Whether the offset at which a download with resume data continues was reported to the program.
  private var hasToldResumed = false
  /// The handler that waits for resume data.
  private var resumeHandler: (@Sendable (Data?) -> Void)?

  /// - Parameter status: the status of a transfer that an earlier process has submitted to the agent.
  init(
    _ session: URLSession, _ task: URLSessionTask, _ content: Transfer.Content, _ completion: Transfer.Completion,
    _ background: BackgroundSession, restoring status: TransferStatus?
  ) {
    (self.session, self.task, self.content, self.completion) = (session, task, content, completion)
    self.background = background
    key = status?.key ?? LiveStreamConfiguration.randomStreamID()
    if case .resumedDownload(let record) = content {
      isAtOtherOrigin = record.request.isAtOtherOrigin ?? false
    } else {
      isAtOtherOrigin = status?.isAtOtherOrigin ?? false
    }
    if let status { (id, isSubmitted, isSuspended) = (status.id, true, status.state == .paused) }
  }

  // MARK: Orders

  func refuse() { monitor.withLock { isRefused = true } }

  func resume() {
    let (submits, known) = monitor.withLock { () -> (Bool, Int64?) in
      guard !isOver else { return (false, nil) }
      isSuspended = false
      defer { isSubmitted = true }
      return (!isSubmitted, id)
    }
    if submits { submit() } else if let known { background.order(.resume(id: known)) }
  }

  func suspend() {
    let known = monitor.withLock { () -> Int64? in
      isSuspended = true
      return isOver ? nil : id
    }
    if let known { background.order(.pause(id: known)) }
  }

  /// Whether the session accepts no tasks.
  var isUnwanted: Bool { monitor.withLock { isRefused } }

  /// - Parameter handler: receives the resume data of a download. For an upload it receives nil: the agent keeps what
  ///   it needs to continue, and removes it with the transfer.
  func cancel(_ handler: (@Sendable (Data?) -> Void)?) {
    let (isLate, isHere, known) = monitor.withLock { () -> (Bool, Bool, Int64?) in
      isCancelled = true
      if !isOver { resumeHandler = handler }
      return (isOver, !isSubmitted, isOver ? nil : id)
    }
    if isLate {
      // The task has just ended, and has no data any more.
      session.call { handler?(nil) }
    } else if isHere {
      // The data that it was to continue with is still valid.
      let data: Data? = if case .resumedDownload(let record) = content { record.data } else { nil }
      end(URLError(.cancelled, task.originalRequest?.url).with(data, URLError.ResumeKey.download), resumeData: data)
    } else if let known {
      background.order(cancelOrder(known))
    }
  }

  private func cancelOrder(_ id: Int64) -> AgentOrder.Kind {
    .cancel(id: id, keeps: task is URLSessionDownloadTask && monitor.withLock { resumeHandler != nil })
  }

  private func submit() {
    do {
      let request = try transferRequest()
      background.order(.submit(request)) { [self] answer in
        switch answer {
        case .accepted(_, let id): accept(id)
        case .refused(_, let refusal, let message):
          end(URLError(refusal == .file ? .cannotOpenFile : .unknown, task.originalRequest?.url, message))
        default: break
        }
      }
    } catch let error as URLError {
      end(error)
    } catch {
      end(URLError(.unknown, task.originalRequest?.url, "\(error)"))
    }
  }

  // MARK: The agent's messages

  /// - Parameter number: the number that the agent has assigned.
  private func accept(_ number: Int64) {
    let (isCancelled, isSuspended) = monitor.withLock {
      id = number
      return (self.isCancelled, self.isSuspended)
    }
    // Carry out the orders that the program has given meanwhile.
    if isCancelled {
      background.order(cancelOrder(number))
    } else if isSuspended {
      background.order(.pause(id: number))
    }
  }

  /// The session receives no more news, for example because another process has taken it over. The transfer continues.
  func isDisconnected() { end(background.error) }

  func hear(_ status: TransferStatus) {
    let (waits, isCancelled) = monitor.withLock {
      id = status.id
      let waits = status.trouble != nil && !hasToldWaiting
      if waits { hasToldWaiting = true }
      return (waits, self.isCancelled)
    }
    note(status)
    if let result = status.result { return end(result, status) }
    // An agent was killed before it could hand over the part, and the next one waits for an order.
    if isCancelled, status.state == .paused { background.order(cancelOrder(status.id)) }
    if waits, let delegate = session.taskDelegate(of: task) {
      session.call { [session, task] in delegate.urlSession(session, taskIsWaitingForConnectivity: task) }
    }
  }

  /// Updates the progress.
  private func note(_ status: TransferStatus) {
    let size = status.size.map { Int64(clamping: $0) } ?? NSURLSessionTransferSizeUnknown
    guard status.kind == .download else {
      task.change { $0.bytesExpectedToSend = size }
      if status.result == nil { session.noteSent(status.acknowledged, of: task) }
      return
    }
    task.change { facts in
      facts.bytesExpectedToReceive = size
      facts.bytesReceived = Int64(clamping: status.acknowledged)
    }
    task.updateProgress()
    guard status.acknowledged > 0, status.result?.outcome ?? .completed == .completed,
      let task = task as? URLSessionDownloadTask,
      let delegate = session.downloadDelegate(of: task)
    else { return }
    let total = Int64(clamping: status.acknowledged)
    if case .resumedDownload = content, monitor.withLock({ !hasToldResumed }) {
      // Until a server has answered, it is unknown whether the part is continued.
      guard let start = status.contentStart ?? (status.result == nil ? nil : 0) else { return }
      monitor.withLock { hasToldResumed = true }
      if start > 0 { tellResumed(delegate, task, at: Int64(clamping: start), size) }
    }
    session.call { [session] in
      // Fewer than before, after a download has started over.
      let new = task.change { facts in
        defer { facts.bytesToldWritten = total }
        return total - facts.bytesToldWritten
      }
      guard new > 0 else { return }
      delegate.urlSession(
        session, downloadTask: task, didWriteData: new, totalBytesWritten: total, totalBytesExpectedToWrite: size)
    }
  }

  private func tellResumed(
    _ delegate: any URLSessionDownloadDelegate, _ task: URLSessionDownloadTask, at start: Int64, _ size: Int64
  ) {
    session.call { [session] in
      task.change { $0.bytesToldWritten = start }
      delegate.urlSession(session, downloadTask: task, didResumeAtOffset: start, expectedTotalBytes: size)
    }
  }

  /// Reports the end to the program, and then confirms it to the agent.
  private func end(_ result: TransferResult, _ status: TransferStatus) {
    let url = task.originalRequest?.url
    var error: URLError?
    if result.outcome != .completed, !result.isAnswer { error = URLError(result, url) }
    let data = resumeData(of: result)
    error = error?.with(data, URLError.ResumeKey.download)
    if status.kind == .upload { session.noteSent(result.byteCount, of: task) }
    if let url, error == nil, let code = result.status {
      let response = HTTPResponse(status: code, fields: HeaderFields(lines: result.fields))
      task.change { $0.response = HTTPURLResponse.make(response, url) }
    }
    let file: ReceivedFile? =
      status.kind == .upload || error != nil
      ? nil : result.outcome == .completed ? .agent(URL(fileURLWithPath: status.path)) : .answer(result.body)
    let body = status.kind == .upload && error == nil ? result.body : []
    task.change { $0.bytesReceived = status.kind == .upload ? Int64(body.count) : Int64(clamping: result.byteCount) }
    end(error, data: body, file: file, resumeData: data) { [background] in
      background.order(.acknowledge(id: status.id))
    }
  }

  /// The data with which a new task continues a download. The agent has handed the part to this program.
  private func resumeData(of result: TransferResult) -> Data? {
    guard let data = result.resumeData.flatMap({ DownloadCheckpoint($0)?.found }), let request = task.originalRequest
    else { return nil }
    return DownloadRecord(request, isAtOtherOrigin: isAtOtherOrigin, data).data
  }

  /// - Parameter told: called when the program has received the end.
  private func end(
    _ error: URLError?, data: [UInt8] = [], file: ReceivedFile? = nil, resumeData: Data? = nil,
    told: @escaping @Sendable () -> Void = {}
  ) {
    let (isFirst, handler) = monitor.withLock {
      defer { isOver = true }
      return (!isOver, resumeHandler.take())
    }
    guard isFirst else { return }
    task.isOver(error)
    let delegate = session.taskDelegate(of: task)
    session.call { [session, task, completion] in
      handler?(resumeData)
      switch completion {
      case .delegate:
        if !data.isEmpty, let task = task as? URLSessionDataTask {
          session.dataDelegate(of: task)?.urlSession(session, dataTask: task, didReceive: Data(data))
        }
        if let file, let task = task as? URLSessionDownloadTask {
          file.withURL { url in
            session.downloadDelegate(of: task)?
              .urlSession(session, downloadTask: task, didFinishDownloadingTo: url)
          }
        }
        delegate?.urlSession(session, task: task, didCompleteWithError: error)
      case .data(let handler): handler(nil, nil, error)
      case .download(let handler): handler(nil, nil, error)
      }
      task.delegate = nil
      told()
      // After the order above, because a finished session waits for its orders' answers.
      session.end(task)
    }
  }
}
