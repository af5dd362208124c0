// Uploads through Sluice's live streams: bodies of unknown length, and resumed uploads.

internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import LiveStreaming
internal import ResumableUploads
internal import UploadClient

/// What the events of a stream have shown.
struct StreamFacts {
  /// Whether the server has an upload resource for it; nil until that is known.
  var isResumable: Bool?
  var hasConnected = false
  /// Why the last attempt failed.
  var cause: FailedAttempt.Cause?
  var resumeData: ResumeData?
  /// Why the transfer has ended the stream.
  var failure: URLError?
}

extension Transfer {
  /// A response to a stream or a resumed upload is delivered at its end, and must be shorter than this, in bytes.
  static let responseLimit = 64 << 20

  // MARK: Bodies of unknown length

  func sendStream() {
    if case .givenStream(let stream) = content { return start(stream) }
    guard let delegate = taskDelegate else { return end(URLError(.requestBodyStreamExhausted, request.url)) }
    ask { [session, task] answer in
      delegate.urlSession(session, task: task, needNewBodyStream: { answer(GivenStream($0)) })
    } then: { [self] (given: GivenStream) in
      guard let stream = given.stream else {
        return end(URLError(.requestBodyStreamExhausted, request.url, "the delegate provided no stream for the body"))
      }
      start(stream)
    }
  }

  private func start(_ stream: InputStream) {
    guard let engine, let upload = UploadRequest(request, settings, isAtOtherOrigin: isAtOtherOrigin) else {
      return end(URLError(.unsupportedURL, request.url))
    }
    var configuration = configuration(upload)
    configuration.overflow = .wait
    // Fewer wake-ups for fast bodies.
    configuration.pairSize = 64 << 10
    configuration.request.uploadBufferSize = 64 << 10
    let source = InputStreamSource(stream) { [weak self] words in
      guard let self else { return }
      stopStream(URLError(.requestBodyStreamExhausted, request.url, words))
    }
    self.source = source
    // After a redirect, another server answers.
    streamFacts = StreamFacts()
    do {
      run(try LiveStreamer(source, configuration: configuration, session: engine))
    } catch {
      end(URLError(.unknown, request.url, "no memory for the stream's buffer: \(error)"))
    }
  }

  private func configuration(_ upload: UploadRequest) -> LiveStreamConfiguration {
    sent = upload
    var configuration = LiveStreamConfiguration(request: upload)
    configuration.request.tellsAccepted = true
    configuration.measured = { [weak self] measured, sent, result in
      self?.note(measured, of: sent, try? result.get().response)
    }
    configuration.request.responseBodyLimit = Self.responseLimit
    configuration.retry.giveUpAfter = .milliseconds(
      Int64(max(0, min(settings.timeoutIntervalForResumption, 1e9)) * 1000))
    configuration.retry.waitsForConnectivity = settings.waitsForConnectivity && !hasConnected
    return configuration
  }

  // MARK: Resumption

  /// Continues an interrupted upload, if the server has announced an upload resource.
  func continueUpload() {
    guard let record = uploadRecord() else { return end(URLError(.networkConnectionLost, request.url)) }
    number += 1
    abortRunning()
    resume(record)
  }

  /// The data with which a later task, or this one, continues; nil if the server has not announced an upload resource.
  func uploadRecord() -> UploadRecord? {
    let data =
      streamFacts.resumeData
      ?? announced.map {
        ResumeData(
          upload: UploadRequest.withoutCredentials($0),
          target: UploadRequest.withoutCredentials(request.url?.absoluteString ?? ""), base: 0,
          length: UInt64(clamping: task.countOfBytesExpectedToSend), streamID: nil, version: offered ?? .newest)
      }
    guard let data else {
      // The task was cancelled before its first request, so the data that it was to continue with is still valid.
      if !hasBegun, case .resumedUpload(let record) = content { return record }
      return nil
    }
    switch content {
    case .resumedUpload(var record):
      record.upload = data.text ?? record.upload
      return record
    case .bytes(let bytes): return record(.bytes(bytes), data)
    case .file(let url): return file.flatMap { record(.file(url.path, version: "\($0.version)"), data) }
    case .stream, .givenStream: return record(.stream, data)
    default: return nil
    }
  }

  private func record(_ body: UploadRecord.Body, _ data: ResumeData) -> UploadRecord? {
    UploadRecord(request, isAtOtherOrigin: isAtOtherOrigin, body, data)
  }

  func resume(_ record: UploadRecord) {
    guard let engine, let upload = UploadRequest(request, settings, isAtOtherOrigin: isAtOtherOrigin),
      let data = ResumeData(record.upload)
    else {
      return end(URLError(.unsupportedURL, request.url))
    }
    if case .stream = record.body { return resumeStream(upload, data) }
    do {
      let file = try self.file ?? open(record.body)
      self.file = file
      task.change { $0.bytesExpectedToSend = Int64(clamping: file.size) }
      var configuration = configuration(upload)
      configuration.resumeData = data
      configuration.streamID = data.streamID ?? configuration.streamID
      configuration.rollOver.size = .max
      streamFacts.isResumable = true
      streamFacts.resumeData = data
      run(LiveStreamer(file, configuration: configuration, session: engine))
    } catch let error as UploadFileError {
      end(URLError(error, request.url))
    } catch {
      end(URLError(.unknown, request.url, "\(error)"))
    }
  }

  private func open(_ body: UploadRecord.Body) throws -> UploadFile {
    switch body {
    case .file(let path, let version):
      let file = try UploadFile(path: path)
      guard file.version.isSame(asDescribed: version) else {
        throw UploadFileError.changed("it is not the file whose upload was interrupted")
      }
      return file
    case .bytes(let data):
      let memory = try MemoryFile(data)
      self.memory = memory
      return try UploadFile(path: memory.path)
    case .stream: throw UploadFileError.notRegular
    }
  }

  // MARK: Events

  private func run(_ streamer: LiveStreamer) {
    self.streamer = streamer
    number += 1
    let number = number
    streamer.start { [self] event in
      guard self.number == number, !isOver else { return }
      handle(event)
    }
    if isSuspended { streamer.suspend() }
  }

  private func handle(_ event: LiveStreamEvent) {
    switch event {
    case .connected:
      noteConnected()
      streamFacts.hasConnected = true
      streamFacts.cause = nil
    case .accepted(let count): noteSent(count)
    case .interimResponse(let response): tellInterim(response)
    case .upload(.created(let data)): (streamFacts.isResumable, streamFacts.resumeData) = (true, data)
    case .upload(.notSupported): streamFacts.isResumable = false
    case .outage(let attempt), .attemptFailed(let attempt): interrupted(attempt.cause)
    case .ended(let summary): ended(summary)
    default: break
    }
  }

  private func interrupted(_ cause: FailedAttempt.Cause) {
    streamFacts.cause = cause
    // Like any request to a server that cannot be reached.
    if settings.waitsForConnectivity, !hasConnected, cause.isUnreachability { return tellWaiting() }
    if !streamFacts.hasConnected, streamFacts.isResumable != true || settings.waitsForConnectivity && !hasConnected {
      return stopStream(URLError(URLError.code(of: cause), request.url, "\(cause)"))
    }
    // A server that cannot resume must not receive a second request with the rest of a body.
    if streamFacts.isResumable == false {
      if case .response(let status) = cause, !(200..<300).contains(status) { return stopStream(nil) }
      stopStream(URLError(URLError.code(of: cause), request.url, "\(cause)"))
    }
  }

  /// Ends the stream, and the transfer with it.
  private func stopStream(_ error: URLError?) {
    if streamFacts.failure == nil { streamFacts.failure = error }
    streamer?.cancel()
  }

  private func ended(_ summary: StreamSummary) {
    number += 1
    streamer = nil
    streamFacts.resumeData = summary.resumeData
    if let handler = resumeHandler.take() {
      return endCancelled(handler, uploadRecord()?.data, URLError.ResumeKey.upload)
    }
    guard let error = summary.error else {
      noteSent(summary.progress.captured)
      return respond(summary)
    }
    if let failure = streamFacts.failure { return fail(failure) }
    // An unsuccessful response is still a response if it is the last event.
    var isAnswered = error.kind != .unreachable && error.kind != .source && error.kind != .cancelled
    if case .response? = streamFacts.cause { isAnswered = true }
    // If the stream has failed, a success belongs to another request, or came before the stream's end. But a plain
    // server's 206 after that end is a response like an error: the program decides what it means.
    let isPlain = error.kind == .refused && streamFacts.isResumable == false
    if isAnswered, let response = summary.response, !response.isInterim,
      !response.isSuccess || isPlain && !response.confirmsContent
    {
      return respond(summary)
    }
    fail(URLError(error, cause: streamFacts.cause, request.url))
  }

  /// The stream has its final response.
  private func respond(_ summary: StreamSummary) {
    source?.close(failure: summary.error?.description)
    source = nil
    respond(summary.response ?? HTTPResponse(status: 200), summary.responseFailure)
  }

  /// The upload ends with a response.
  ///
  /// - Parameter failure: why its body is incomplete. Nil if it is complete.
  func respond(_ response: HTTPResponse, _ failure: UploadError?) {
    if failure == nil, response.body.count >= Self.responseLimit {
      let words = "the response of the upload is longer than \(Self.responseLimit >> 20) MiB"
      return fail(URLError(.dataLengthExceedsMaximum, request.url, words))
    }
    let result = Result<UploadTask.Outcome, UploadError>.success(
      .init(response: response, isEarly: failure == nil, bodyFailure: failure))
    // A long body may belong to a redirect or a challenge, with the next request already under way.
    let number = number
    answered(response)
    if !isOver, self.number == number, !response.body.isEmpty { receive(response.body) }
    if !isOver, self.number == number { finished(result) }
  }

  // MARK: Resume data

  /// Ends the transfer as soon as it is known how a later one can continue.
  func produceResumeData(_ handler: @escaping @Sendable (Data?) -> Void) {
    guard download == nil else {
      resumeHandler = handler
      return stopDownload { [unowned self] record in
        guard let handler = resumeHandler.take() else { return }
        endCancelled(handler, record?.data, URLError.ResumeKey.download)
      }
    }
    if let record = unusedDownload { return endCancelled(handler, record.data, URLError.ResumeKey.download) }
    if let streamer {
      resumeHandler = handler
      return streamer.cancel()
    }
    if announced != nil || running == nil || streamFacts.resumeData != nil
      || sent?.tellsCompleteness != true
    {
      return endCancelled(handler, uploadRecord()?.data, URLError.ResumeKey.upload)
    }
    // The server may be about to announce an upload resource. Nothing more is sent until then.
    resumeHandler = handler
    // A request that has not begun would never begin.
    if hasConnected { running?.suspend() }
    after(1) { [unowned self] in
      guard let handler = resumeHandler.take() else { return }
      endCancelled(handler, nil, URLError.ResumeKey.upload)
    }
  }

  /// The data of a task that was to continue a download, before its first request.
  private var unusedDownload: DownloadRecord? {
    if !hasBegun, case .resumedDownload(let record) = content { record } else { nil }
  }

  func endCancelled(_ handler: @escaping @Sendable (Data?) -> Void, _ data: Data?, _ key: String) {
    // The receiver of the data may continue with the file at once.
    if data != nil { download?.close() }
    session.call { handler(data) }
    end(URLError(.cancelled, request.url).with(data, key))
  }
}

/// Carries a stream from the delegate to the network thread.
struct GivenStream: @unchecked Sendable {
  let stream: InputStream?
  init(_ stream: InputStream?) { self.stream = stream }
}
