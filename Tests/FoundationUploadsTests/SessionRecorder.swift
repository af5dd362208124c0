// A delegate that records its calls.

import FoundationUploads
import NetworkTesting

/// A call or a question that a delegate received.
enum Told: Sendable, Equatable {
  case created
  case needsStream
  case needsStreamFrom(Int64)
  case sent(total: Int64, expected: Int64)
  case interim(Int)
  case response(Int)
  case data(Data)
  case redirect(Int, to: String)
  case challenge(failures: Int, realm: String?)
  case waiting
  case wrote(total: Int64, expected: Int64)
  case resumedAt(Int64)
  case downloaded(Data)
  case metrics
  case completed(URLError.Code?)
  case invalid
}

/// Answers as the test has configured.
final class SessionRecorder: NSObject, URLSessionDataDelegate, URLSessionDownloadDelegate, @unchecked Sendable {
  let log: EventLog<Told>
  // Set before the first task.
  var stream: () -> InputStream? = { nil }
  var streamFrom: (Int64) -> InputStream? = { _ in nil }
  var redirect: (URLRequest) -> URLRequest? = { $0 }
  var credential: (Int) -> URLCredential? = { _ in nil }
  /// Called for each piece of a response, before it is recorded.
  var received: () -> Void = {}
  var disposition = URLSession.ResponseDisposition.allow
  /// The error of the last task that failed.
  private(set) var error: URLError?
  /// The metrics of the last task that has ended.
  private(set) var metrics: URLSessionTaskMetrics?

  override init() {
    // This fails only without descriptors, and then no test works.
    guard let log = try? EventLog<Told>() else { fatalError("no descriptors are left") }
    self.log = log
  }

  /// The error code with which the next task ends; nil for success.
  func end() throws -> URLError.Code? {
    try log.wait("the task's end") { events -> URLError.Code?? in
      for case .completed(let code) in events { return .some(code) }
      return nil
    }
  }

  var data: Data { log.all.reduce(into: Data()) { if case .data(let piece) = $1 { $0 += piece } } }

  func urlSession(_ session: URLSession, didBecomeInvalidWithError error: (any Error)?) { log.append(.invalid) }

  func urlSession(_ session: URLSession, didCreateTask task: URLSessionTask) { log.append(.created) }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping @Sendable (URLRequest?) -> Void
  ) {
    log.append(.redirect(response.statusCode, to: request.url?.path ?? ""))
    completionHandler(redirect(request))
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
    completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void
  ) {
    log.append(.challenge(failures: challenge.previousFailureCount, realm: challenge.protectionSpace.realm))
    let credential = credential(challenge.previousFailureCount)
    completionHandler(credential == nil ? .performDefaultHandling : .useCredential, credential)
  }

  // Written like in the article, without `@Sendable`.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, needNewBodyStream completionHandler: @escaping (InputStream?) -> Void
  ) {
    log.append(.needsStream)
    completionHandler(stream())
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, needNewBodyStreamFrom offset: Int64,
    completionHandler: @escaping @Sendable (InputStream?) -> Void
  ) {
    log.append(.needsStreamFrom(offset))
    completionHandler(streamFrom(offset))
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, didSendBodyData bytesSent: Int64, totalBytesSent: Int64,
    totalBytesExpectedToSend: Int64
  ) { log.append(.sent(total: totalBytesSent, expected: totalBytesExpectedToSend)) }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceiveInformationalResponse response: HTTPURLResponse
  ) { log.append(.interim(response.statusCode)) }

  func urlSession(_ session: URLSession, taskIsWaitingForConnectivity task: URLSessionTask) { log.append(.waiting) }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, didFinishCollecting metrics: URLSessionTaskMetrics
  ) {
    self.metrics = metrics
    log.append(.metrics)
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    self.error = error as? URLError
    log.append(.completed(self.error?.code))
  }

  func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
    completionHandler: @escaping @Sendable (URLSession.ResponseDisposition) -> Void
  ) {
    log.append(.response((response as? HTTPURLResponse)?.statusCode ?? 0))
    completionHandler(disposition)
  }

  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    received()
    log.append(.data(data))
  }

  func urlSession(_ session: URLSession, downloadTask: URLSessionDownloadTask, didFinishDownloadingTo location: URL) {
    log.append(.downloaded((try? Data(contentsOf: location)) ?? Data()))
  }

  func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didWriteData bytesWritten: Int64,
    totalBytesWritten: Int64, totalBytesExpectedToWrite: Int64
  ) { log.append(.wrote(total: totalBytesWritten, expected: totalBytesExpectedToWrite)) }

  func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didResumeAtOffset fileOffset: Int64,
    expectedTotalBytes: Int64
  ) { log.append(.resumedAt(fileOffset)) }
}

/// A session with a recorder, which ends when it is released.
struct TestSession {
  let recorder = SessionRecorder()
  let session: URLSession

  init(_ change: (URLSessionConfiguration) -> Void = { _ in }) {
    let configuration = URLSessionConfiguration.default
    configuration.timeoutIntervalForRequest = 60
    change(configuration)
    session = URLSession(configuration: configuration, delegate: recorder, delegateQueue: nil)
  }

  func end() { session.invalidateAndCancel() }
}

func request(_ url: String, _ method: String = "GET") throws -> URLRequest {
  guard let url = URL(string: url) else { throw TestFailure("\(url) is not a URL") }
  var request = URLRequest(url: url)
  request.httpMethod = method
  return request
}

extension EventLog {
  /// The number of events that `matches`.
  func count(where matches: (Event) -> Bool) -> Int { all.count(where: matches) }
}

/// The bytes that a server has stored, by the body of its response.
func stored(_ body: Data, _ server: StreamServer) throws -> [UInt8] {
  let text = String(decoding: body, as: UTF8.self)
  guard let start = text.range(of: "\"name\":\"")?.upperBound else {
    throw TestFailure("the response has no name: \(text)")
  }
  return try server.directory.contents(String(text[start...].prefix { $0 != "\"" }))
}
