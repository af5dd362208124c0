// The transfer's requests, and the reaction to each event.

internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import Glibc
internal import LiveStreaming
internal import ResumableUploads
internal import UploadClient

extension Transfer {
  /// Sends the current request.
  func send() {
    guard !isOver else { return }
    task.change { $0.currentRequest = request }
    if (request.httpMethod ?? "GET") == "GET", content.isBody {
      return end(URLError(.dataLengthExceedsMaximum, request.url))
    }
    switch content {
    case .stream, .givenStream: return sendStream()
    case .resumedUpload(let record): return resume(record)
    case .unusable:
      return end(
        session.acceptsTasks
          ? URLError(.unsupportedURL, nil, "the resume data is not that of an upload task")
          : URLError(.cancelled, request.url, "the session is invalid"))
    case .resumedDownload(let record): download = download ?? DownloadFile(resuming: record, session.disk)
    case .none, .bytes, .file: break
    }
    if task is URLSessionDownloadTask, download == nil { download = DownloadFile(session.disk) }
    if let problem = download?.problem { return end(problem) }
    do {
      try sendOnce()
    } catch let error as URLError {
      end(error)
    } catch let error as UploadError {
      end(URLError(error, request.url))
    } catch {
      end(URLError(.cannotOpenFile, request.url, "\(error)"))
    }
  }

  private func sendOnce() throws {
    guard var upload = UploadRequest(request, settings, isAtOtherOrigin: isAtOtherOrigin) else {
      throw URLError(.unsupportedURL, request.url)
    }
    if let download {
      download.addRange(to: &upload)
      // Only an unencoded response can be continued. One that is encoded anyway is decoded.
      upload.acceptEncoding = "identity"
    }
    if content.isBody, !(task is URLSessionUploadTask), upload.method == "POST" { upload.assumeForm() }
    let body: UploadBody
    switch content {
    case .bytes(let data): body = .bytes(Array(data))
    case .file(let url):
      let file = try openFile(url)
      task.change { $0.bytesExpectedToSend = Int64(clamping: file.size) }
      body = try file.body(0..<file.size)
    default: body = ["POST", "PUT", "PATCH"].contains(upload.method) ? .empty : .none
    }
    if offersResumption { offered?.offer(resumptionOf: task.countOfBytesExpectedToSend, &upload) }
    try begin(upload, body)
  }

  /// Sends one request, whose response goes to the program unless it leads elsewhere.
  func begin(_ upload: UploadRequest, _ body: consuming UploadBody) throws {
    guard let engine else { return }
    var upload = upload
    (upload.tellsResponse, upload.tellsAccepted) = (true, true)
    number += 1
    let number = number
    sent = upload
    running = try engine.upload(upload, body: body) { [self] event in
      guard self.number == number else { return }
      handle(event)
    }
    if isSuspended { running?.suspend() }
    updateReception()
  }

  private func openFile(_ url: URL) throws -> UploadFile {
    do throws(UploadFileError) {
      let file = try UploadFile(path: url.path)
      self.file = file
      return file
    } catch { throw URLError(error, url) }
  }

  // MARK: Events

  private func handle(_ event: UploadTask.Event) {
    guard !isOver else { return }
    switch event {
    case .connected:
      noteConnected()
      if resumeHandler != nil { running?.suspend() }
    case .accepted(let count): noteSent(sentBefore.addingSaturated(count))
    case .interimResponse(let response):
      noteAnnouncement(response)
      tellInterim(response)
      if let handler = resumeHandler, announced != nil {
        resumeHandler = nil
        return endCancelled(handler, uploadRecord()?.data, URLError.ResumeKey.upload)
      }
      // libcurl would fail the request; see UploadTask.
      if announced != nil, running?.responseHeaderByteCount ?? 0 > UploadTask.responseHeaderLimit * 2 / 3 {
        continueUpload()
      }
    case .response(let response): answered(response)
    case .responseBody(let bytes): receive(bytes)
    case .finished(let result):
      noteRunning(result, of: sent)
      noteContentEnd()
      running = nil
      finished(result)
    }
  }

  func noteContentEnd() {
    guard let running, running.contentEndedAt != nil, let offset = resumption?.offset else { return }
    resumption?.end = offset.addingSaturated(running.sentByteCount)
  }

  func noteConnected() { (hasConnected, outageStart) = (true, nil) }

  func finished(_ result: Result<UploadTask.Outcome, UploadError>) {
    switch pending {
    case .nothing: break
    case .redirect(let response, let next): return askRedirect(response, next, result)
    case .challenge(let response, let challenge): return askChallenge(response, challenge, result)
    case .outage(let response): return outage(response, result)
    case .otherVersion(let response): return otherVersion(response)
    case .refused(let error): return refused(error)
    case .decision:
      heldEnd = result
      return
    }
    switch result {
    case .success(let outcome):
      if let failure = outcome.bodyFailure { return fail(URLError(failure, request.url)) }
      if !outcome.isEarly { noteAllSent() }
      if let download, !download.isWritten { return whenWritten { [unowned self] in finished(result) } }
      if let download { tellWritten(download) }
      if let download, let problem = download.problem { return end(problem) }
      if let download, !download.isWhole { return fail(URLError(.networkConnectionLost, request.url)) }
      end(nil)
    case .failure(let error): failed(error)
    }
  }

  func failed(_ error: UploadError) {
    if !hasConnected, settings.waitsForConnectivity, error.isUnreachability { return waitForConnectivity() }
    guard error.isTemporary else { return fail(URLError(error, request.url)) }
    if announced != nil { return continueUpload() }
    retryResumption { fail(URLError(error, request.url)) }
  }

  private func waitForConnectivity() {
    tellWaiting()
    let start = outageStart ?? .now
    outageStart = start
    let delay = RetryPolicy().delay(outage: .now - start, retryAfter: nil, draw: .random(in: .min ... .max))
    after(delay.seconds) { [unowned self] in send() }
  }

  func tellWaiting() {
    guard !hasToldWaiting else { return }
    hasToldWaiting = true
    guard let delegate = taskDelegate else { return }
    session.call { [session, task] in delegate.urlSession(session, taskIsWaitingForConnectivity: task) }
  }
}
