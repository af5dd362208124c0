// A resumed upload of a stream. The server reports its offset, and the delegate provides a stream from there, as often
// as necessary.

internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import Glibc
internal import HTTPMessages
internal import LiveStreaming
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

/// The state of an upload that is being resumed.
struct StreamResumption {
  /// The request for the upload resource, without the protocol's method and fields.
  let upload: UploadRequest
  let data: ResumeData
  /// How many bytes the server had stored when it was first asked, and when it was last asked; nil before.
  var firstOffset: UInt64?
  var offset: UInt64?
  /// When the current outage began. Nil without one.
  var outageStart: MonotonicInstant?
  var failures = 0
  /// Whether a part of a stream was sent.
  var hasAppended = false
  /// Where the upload ends, in bytes; nil until a stream has ended.
  var end: UInt64?

  /// Statuses of a temporary state (RFC 9110, section 15). Servers use 400 and 409 for a wrong offset, and then the
  /// next offset retrieval shows the right one.
  static func isTemporary(status: Int) -> Bool {
    [400, 408, 409, 423, 425, 429, 500, 502, 503, 504].contains(status) || status >= 506
  }
}

extension Transfer {
  /// Attempts that must be made before a resumption may fail because of the time limit.
  private static let leastAttempts = 3

  /// Continues an upload of a stream.
  func resumeStream(_ upload: UploadRequest, _ data: ResumeData) {
    guard let place = upload.resolving(location: data.upload) else {
      return end(URLError(.unsupportedURL, request.url))
    }
    streamFacts.resumeData = data
    // Bytes sent before a redirect or a challenge count.
    let earlier = resumption
    resumption = StreamResumption(
      upload: upload.directed(to: place), data: data, firstOffset: earlier?.firstOffset, offset: earlier?.offset,
      outageStart: earlier?.outageStart, failures: earlier?.failures ?? 0, hasAppended: earlier?.hasAppended ?? false,
      end: earlier?.end)
    askOffset()
  }

  /// Asks the server for its offset (section "Offset Retrieval").
  private func askOffset() {
    guard let engine, let resumption else { return }
    let question = question(resumption)
    sent = question
    number += 1
    let number = number
    do {
      running = try engine.upload(question, body: .none) { [self] event in
        guard self.number == number, !isOver else { return }
        switch event {
        case .connected: noteConnected()
        case .finished(let result):
          noteRunning(result, of: question)
          running = nil
          told(result)
        default: break
        }
      }
      if isSuspended { running?.suspend() }
    } catch {
      end(URLError(error, request.url))
    }
  }

  private func question(_ resumption: StreamResumption) -> UploadRequest {
    var question = resumption.upload
    question.method = "HEAD"
    question.fields = question.fields.filter { !$0.hasPrefix("content-") }
    resumption.data.interopVersion.setVersion(&question.fields)
    return question
  }

  private func told(_ result: Result<UploadTask.Outcome, UploadError>) {
    let response: HTTPResponse
    switch result {
    case .success(let outcome): response = outcome.response
    case .failure(let error): return failed(error)
    }
    if response.status == 401, let challenge = BasicChallenge(response) {
      return askChallenge(response, challenge, result)
    }
    let fields = response.fields
    guard let resumption, response.isSuccess, let offset = UploadFields.offset(fields),
      let position = Int64(exactly: resumption.data.base.addingReportingOverflow(offset).partialValue)
    else {
      let error = URLError(
        .badServerResponse, request.url, "the server cannot resume the upload: it answered \(response.status)")
      if StreamResumption.isTemporary(status: response.status) {
        return retryResumption(retryAfter: response.retryAfter(wallClock: time(nil))) { fail(error) }
      }
      if [404, 410].contains(response.status) { streamFacts.resumeData = nil }
      return fail(error)
    }
    if let last = resumption.offset, offset > last { noteProgress() }
    self.resumption?.firstOffset = resumption.firstOffset ?? offset
    self.resumption?.offset = offset
    if InteropVersion.completeness(fields) == true { return isComplete(response, at: offset) }
    guard let delegate = taskDelegate else { return end(URLError(.requestBodyStreamExhausted, request.url)) }
    ask { [session, task] answer in
      delegate.urlSession(session, task: task, needNewBodyStreamFrom: position) { answer(GivenStream($0)) }
    } then: { [self] (given: GivenStream) in
      guard let stream = given.stream else {
        let words = "the delegate provided no stream from byte \(position)"
        return fail(URLError(.requestBodyStreamExhausted, request.url, words))
      }
      append(stream, at: offset)
    }
  }

  /// Sends the rest (section "Upload Append").
  private func append(_ stream: InputStream, at offset: UInt64) {
    guard let resumption else { return }
    self.resumption?.hasAppended = true
    self.resumption?.end = nil
    sentBefore = offset - min(offset, resumption.firstOffset ?? offset)
    let append = appendRequest(at: offset, resumption)
    StreamFeed.start(stream) { feed, input in
      self.feed = feed
      do { try begin(append, .stream(input)) } catch { end(URLError(.badURL, request.url, "\(error)")) }
    }
  }

  private func appendRequest(at offset: UInt64, _ resumption: StreamResumption) -> UploadRequest {
    var append = resumption.upload
    append.method = "PATCH"
    append.fields = append.fields.filter { !$0.hasPrefix("content-") }
    let version = resumption.data.interopVersion
    version.setVersion(&append.fields)
    append.fields.append(UploadFields.offset, "\(offset)")
    version.setCompleteness(true, &append.fields)
    if version.namesMediaType { append.fields.append("Content-Type", UploadFields.partialUpload) }
    return append
  }

  // MARK: Completion

  /// The server has stored everything, and its final response was lost. An empty append requests it again. If the
  /// server does not repeat it, its answer to the offset retrieval replaces the final response.
  private func isComplete(_ answer: HTTPResponse, at offset: UInt64) {
    guard let engine, let resumption else { return }
    guard !resumption.hasAppended || resumption.end == offset else {
      let words = "the server reports a complete upload of \(offset) bytes, but there are more"
      return fail(URLError(.badServerResponse, request.url, words))
    }
    var upload = appendRequest(at: offset, resumption)
    upload.responseBodyLimit = Self.responseLimit
    let append = upload
    sent = append
    number += 1
    let number = number
    do {
      running = try engine.upload(append, body: .empty) { [self] event in
        guard self.number == number, !isOver, case .finished(let result) = event else { return }
        noteRunning(result, of: append)
        running = nil
        if case .success(let outcome) = result, outcome.response.isSuccess {
          return respond(outcome.response, outcome.bodyFailure)
        }
        respond(answer, nil)
      }
    } catch {
      end(URLError(error, request.url))
    }
  }

  // MARK: Outages

  private func noteProgress() {
    resumption?.outageStart = nil
    resumption?.failures = 0
  }

  /// Asks the server again after a delay, unless there was no progress for `timeoutIntervalForResumption`.
  ///
  /// - Parameters:
  ///   - retryAfter: the delay that the server has requested.
  ///   - giveUp: called instead of that.
  func retryResumption(retryAfter: Duration? = nil, orElse giveUp: () -> Void) {
    guard var resumption else { return giveUp() }
    let now = MonotonicInstant.now
    let start = resumption.outageStart ?? now
    resumption.outageStart = start
    resumption.failures += 1
    let limit = Duration.milliseconds(Int64(max(0, min(settings.timeoutIntervalForResumption, 1e9)) * 1000))
    let left = limit - (now - start)
    guard left > .zero || resumption.failures < Self.leastAttempts else { return giveUp() }
    self.resumption = resumption
    number += 1
    noteContentEnd()
    abortRunning()
    (pending, heldEnd) = (.nothing, nil)
    dropHeld()
    feed?.close(failure: "the connection was lost, and the upload resumes with another stream")
    feed = nil
    var delay = RetryPolicy().delay(
      outage: now - start, retryAfter: retryAfter, draw: .random(in: .min ... .max))
    if left > .zero { delay = min(delay, left) }
    let number = number
    after(delay.seconds) { [unowned self] in if self.number == number { askOffset() } }
  }
}
