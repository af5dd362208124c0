// A task of a background session: the agent performs it.

internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import LiveStreaming
internal import TransferClient
internal import UploadClient

/// What a task tells the agent, and what it hears. Orders may come from any thread.
final class BackgroundTransfer: TaskEngine, @unchecked Sendable {
  private let session: URLSession
  private let task: URLSessionTask
  private let content: Transfer.Content
  private let completion: Transfer.Completion
  private let background: BackgroundSession

  /// What the agent and the session know it by.
  let key: String

  private let monitor = Monitor()
  /// The agent's number; nil until it has accepted the transfer.
  private var id: Int64?
  private var isSubmitted = false
  private var isSuspended = false
  private var isCancelled = false
  private var isOver = false
  private var isRefused = false
  private var hasToldWaiting = false

  /// - Parameter status: of a transfer that an earlier process has handed to the agent.
  init(
    _ session: URLSession, _ task: URLSessionTask, _ content: Transfer.Content, _ completion: Transfer.Completion,
    _ background: BackgroundSession, restoring status: TransferStatus?
  ) {
    (self.session, self.task, self.content, self.completion) = (session, task, content, completion)
    self.background = background
    key = status?.key ?? LiveStreamConfiguration.randomStreamID()
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

  /// - Parameter handler: given nil: the agent keeps what it needs to continue, and forgets it with the transfer.
  func cancel(_ handler: (@Sendable (Data?) -> Void)?) {
    let (isHere, known) = monitor.withLock { () -> (Bool, Int64?) in
      isCancelled = true
      return (!isSubmitted, id)
    }
    if isHere {
      end(URLError(.cancelled, task.originalRequest?.url))
    } else if let known {
      background.order(.cancel(id: known))
    }
    if let handler { session.call { handler(nil) } }
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

  /// What the agent is asked for.
  func transferRequest() throws -> TransferRequest {
    let url = task.originalRequest?.url
    if let error = background.error { throw error }
    guard !monitor.withLock({ isRefused }) else { throw URLError(.cancelled, url, "the session is invalid") }
    guard case .file(let file) = content, file.isFileURL, completion.isDelegate else {
      throw URLError(
        .unsupportedURL, url,
        "a background session uploads files, and calls its delegate: use uploadTask(with:fromFile:)")
    }
    guard let original = task.originalRequest, let request = UploadRequest(original, session.configuration) else {
      throw URLError(.unsupportedURL, url)
    }
    let settings = session.configuration
    var transfer = TransferRequest(key: key, url: request.url, path: file.standardizedFileURL.path)
    transfer.file = FileStamp.of(transfer.path)
    transfer.session = background.identifier
    transfer.task = Int64(task.taskIdentifier)
    transfer.method = request.method
    transfer.fields = request.fields.map { "\($0.name): \($0.value)" }
    transfer.note = task.taskDescription
    func absolute(_ path: String?) -> String? { path.map { URL(fileURLWithPath: $0).path } }
    transfer.certificateAuthorities = absolute(request.certificateAuthorities)
    (transfer.clientCertificate, transfer.clientKey) = (
      absolute(request.clientCertificate), absolute(request.clientKey)
    )
    func milliseconds(_ limit: Duration) -> Int64 { limit.nanoseconds / 1_000_000 }
    transfer.connectLimit = milliseconds(request.limits.connect)
    transfer.stallLimit = milliseconds(request.limits.unacknowledged)
    transfer.responseLimit = milliseconds(request.limits.response)
    func time(_ date: Date) -> Int64 { Int64(max(0, min(date.timeIntervalSince1970, 1e12)) * 1000) }
    transfer.earliestBegin = task.earliestBeginDate.map(time)
    transfer.isDiscretionary = settings.isDiscretionary
    transfer.allowsExpensive = settings.allowsExpensiveNetworkAccess
    transfer.allowsConstrained = settings.allowsConstrainedNetworkAccess
    func expected(_ count: Int64) -> Int64? { count == NSURLSessionTransferSizeUnknown ? nil : max(0, count) }
    transfer.expectedToSend = expected(task.countOfBytesClientExpectsToSend)
    transfer.expectedToReceive = expected(task.countOfBytesClientExpectsToReceive)
    transfer.deadline = time(Date(timeIntervalSinceNow: settings.timeoutIntervalForResource))
    return transfer
  }

  // MARK: What the agent says

  /// - Parameter number: the agent's.
  private func accept(_ number: Int64) {
    let order = monitor.withLock { () -> AgentOrder.Kind? in
      id = number
      // What the program has ordered meanwhile.
      return isCancelled ? .cancel(id: number) : isSuspended ? .pause(id: number) : nil
    }
    if let order { background.order(order) }
  }

  /// Another process has the session. The transfer goes on.
  func isReplaced() { end(background.error) }

  func hear(_ status: TransferStatus) {
    let waits = monitor.withLock {
      id = status.id
      guard status.trouble != nil, !hasToldWaiting else { return false }
      hasToldWaiting = true
      return true
    }
    task.change { $0.bytesExpectedToSend = Int64(clamping: status.size) }
    if let result = status.result { return end(result, status) }
    session.noteSent(status.acknowledged, of: task)
    if waits, let delegate = session.taskDelegate(of: task) {
      session.call { [session, task] in delegate.urlSession(session, taskIsWaitingForConnectivity: task) }
    }
  }

  /// Tells the program, and then the agent that the program knows.
  private func end(_ result: TransferResult, _ status: TransferStatus) {
    let url = task.originalRequest?.url
    var error: URLError?
    if result.outcome != .completed, !result.isAnswer { error = URLError(result, url) }
    session.noteSent(result.byteCount, of: task)
    if let url, error == nil, let code = result.status {
      var response = HTTPResponse(status: code)
      response.fields = result.fields.map { line in
        let parts = line.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
        return .init(name: String(parts[0]), value: parts.count > 1 ? String(parts[1].drop { $0 == " " }) : "")
      }
      task.change { [response] in $0.response = HTTPURLResponse.make(response, url) }
    }
    end(error, data: error == nil ? result.body : []) { [background] in background.order(.acknowledge(id: status.id)) }
  }

  /// - Parameter told: called when the program has heard of the end.
  private func end(_ error: URLError?, data: [UInt8] = [], told: @escaping @Sendable () -> Void = {}) {
    let isFirst = monitor.withLock {
      defer { isOver = true }
      return !isOver
    }
    guard isFirst else { return }
    task.change { $0.bytesReceived = Int64(data.count) }
    task.updateProgress()
    task.isOver(error)
    let delegate = session.taskDelegate(of: task)
    session.call { [session, task, completion] in
      switch completion {
      case .delegate:
        if !data.isEmpty, let task = task as? URLSessionDataTask {
          (delegate as? any URLSessionDataDelegate)?.urlSession(session, dataTask: task, didReceive: Data(data))
        }
        delegate?.urlSession(session, task: task, didCompleteWithError: error)
      case .data(let handler): handler(nil, nil, error)
      case .download(let handler): handler(nil, nil, error)
      }
      told()
      // Behind the order above: a session that is over waits for its orders' answers.
      session.end(task)
    }
  }
}

extension TransferResult {
  /// Whether a server has refused the transfer: to a program that is a response, not an error.
  fileprivate var isAnswer: Bool {
    ["refused", "notPermitted"].contains(cause ?? "") && (status ?? 0) >= 300
  }
}

extension URLError {
  fileprivate init(_ result: TransferResult, _ url: URL?) {
    let code: Code =
      switch result.cause {
      case _ where result.outcome == .cancelled: .cancelled
      case "fileUnreadable", "fileChanged": .cannotOpenFile
      case "timedOut": .timedOut
      case "notTrusted": .serverCertificateUntrusted
      case "notPermitted": .userAuthenticationRequired
      case "invalidRequest": .badURL
      case "refused", "protocolBroken", "http2NotSupported", "insecureLocation": .badServerResponse
      default: .unknown
      }
    self.init(code, url, result.message)
  }
}
