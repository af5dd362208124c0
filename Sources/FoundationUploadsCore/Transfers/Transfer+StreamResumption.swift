// An upload of a stream that is resumed: the server says where it stands, and the delegate gives a stream from there.

internal import Foundation
internal import FoundationNetworking
internal import HTTPMessages
internal import LiveStreaming
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

extension Transfer {
  /// Asks the server how much it has (section "Offset Retrieval").
  func resumeStream(_ upload: UploadRequest, _ data: ResumeData) {
    guard let engine, let place = upload.resolving(location: data.upload) else {
      return end(URLError(.unsupportedURL, request.url))
    }
    streamFacts.resumeData = data
    var question = upload.directed(to: place)
    question.method = "HEAD"
    question.fields.removeAll { $0.name.lowercased().hasPrefix("content-") }
    question.addVersion(of: data)
    number += 1
    let number = number
    do {
      running = try engine.upload(question, body: .none) { [self] event in
        guard self.number == number, !isOver, case .finished(let result) = event else { return }
        running = nil
        told(result, upload.directed(to: place), data)
      }
    } catch {
      end(URLError(error, request.url))
    }
  }

  private func told(
    _ result: Result<UploadTask.Outcome, UploadError>, _ upload: UploadRequest, _ data: ResumeData
  ) {
    let response: HTTPResponse
    switch result {
    case .success(let outcome): response = outcome.response
    case .failure(let error): return fail(URLError(error, request.url))
    }
    let fields = HeaderFields(received: response.fields.lazy.map { (name: $0.name, value: $0.value) })
    guard response.isSuccess, let offset = UploadFields.offset(fields),
      let position = Int64(exactly: data.base.addingReportingOverflow(offset).partialValue)
    else {
      streamFacts.resumeData = nil
      return end(
        URLError(.badServerResponse, request.url, "the server has nothing to resume: it answers \(response.status)"))
    }
    guard let delegate = taskDelegate else { return end(URLError(.requestBodyStreamExhausted, request.url)) }
    ask { [session, task] answer in
      delegate.urlSession(session, task: task, needNewBodyStreamFrom: position) { answer(GivenStream($0)) }
    } then: { [self] (given: GivenStream) in
      guard let stream = given.stream else {
        let words = "the delegate gave no stream from byte \(position)"
        return fail(URLError(.requestBodyStreamExhausted, request.url, words))
      }
      append(stream, at: offset, upload, data)
    }
  }

  /// Sends the rest (section "Upload Append").
  private func append(_ stream: InputStream, at offset: UInt64, _ upload: UploadRequest, _ data: ResumeData) {
    var append = upload
    append.method = "PATCH"
    append.fields.removeAll { $0.name.lowercased().hasPrefix("content-") }
    append.addVersion(of: data)
    append.fields.append(.init(name: UploadFields.offset, value: "\(offset)"))
    var completeness = HeaderFields()
    data.interopVersion.setCompleteness(true, &completeness)
    append.fields += completeness.all.map { .init(name: $0.displayName, value: $0.value) }
    if data.interopVersion.namesMediaType {
      append.fields.append(.init(name: "Content-Type", value: UploadFields.partialUpload))
    }
    StreamFeed.start(stream) { feed, input in
      self.feed = feed
      do { try begin(append, .stream(input)) } catch { end(URLError(.badURL, request.url, "\(error)")) }
    }
  }
}

extension UploadRequest {
  fileprivate mutating func addVersion(of data: ResumeData) {
    var fields = HeaderFields()
    data.interopVersion.setVersion(&fields)
    self.fields += fields.all.map { .init(name: $0.displayName, value: $0.value) }
  }
}
