// The delegate protocols of a session, under Apple's names.
//
// Every method has a default implementation, instead of Objective-C's optional methods. For a task's own delegate, it
// calls the session's delegate.

public import Foundation
public import FoundationNetworking

/// Receives the events of a session. All calls come on the session's delegate queue.
public protocol URLSessionDelegate: NSObjectProtocol, Sendable {
  /// The session was invalidated, and its last task has ended.
  func urlSession(_ session: URLSession, didBecomeInvalidWithError error: (any Error)?)
  /// Called after the missed events of a background session, if there were any.
  func urlSessionDidFinishEvents(forBackgroundURLSession session: URLSession)
}

extension URLSessionDelegate {
  /// Does nothing.
  public func urlSession(_ session: URLSession, didBecomeInvalidWithError error: (any Error)?) {}
  /// Does nothing.
  public func urlSessionDidFinishEvents(forBackgroundURLSession session: URLSession) {}
}

/// Receives the events of tasks of every kind.
public protocol URLSessionTaskDelegate: URLSessionDelegate {
  /// The task exists. It has not been resumed.
  func urlSession(_ session: URLSession, didCreateTask task: URLSessionTask)

  /// The server redirects. Call the handler with `request`, another request, or nil to use the redirect as the
  /// response.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping @Sendable (URLRequest?) -> Void)

  /// The server requires credentials.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
    completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void)

  /// The task requires a stream for its body: at its start, and again after a redirect or a challenge.
  func urlSession(
    _ session: URLSession, task: URLSessionTask,
    needNewBodyStream completionHandler: @escaping @Sendable (InputStream?) -> Void)

  /// A resumed upload requires a stream that begins at byte `offset` of the body.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, needNewBodyStreamFrom offset: Int64,
    completionHandler: @escaping @Sendable (InputStream?) -> Void)

  /// A part of the body was sent.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, didSendBodyData bytesSent: Int64, totalBytesSent: Int64,
    totalBytesExpectedToSend: Int64)

  /// The server sent an interim response, such as 103.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceiveInformationalResponse response: HTTPURLResponse)

  /// The server cannot be reached, and the task waits for it.
  func urlSession(_ session: URLSession, taskIsWaitingForConnectivity task: URLSessionTask)

  /// The task has ended. The metrics describe its requests. Called before the last call, and before a completion
  /// handler.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, didFinishCollecting metrics: URLSessionTaskMetrics)

  /// The last call about the task.
  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?)
}

extension URLSessionTaskDelegate {
  private func other(_ session: URLSession, _ task: URLSessionTask) -> (any URLSessionTaskDelegate)? {
    session.fallback(from: self, of: task) as? any URLSessionTaskDelegate
  }

  /// Does nothing.
  public func urlSession(_ session: URLSession, didCreateTask task: URLSessionTask) {}

  /// Calls the session's delegate if this is the task's own. Otherwise, it follows the redirect.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping @Sendable (URLRequest?) -> Void
  ) {
    guard let other = other(session, task) else { return completionHandler(request) }
    other.urlSession(
      session, task: task, willPerformHTTPRedirection: response, newRequest: request,
      completionHandler: completionHandler)
  }

  /// Calls the session's delegate if this is the task's own. Otherwise, it handles the challenge as without a delegate.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
    completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void
  ) {
    guard let other = other(session, task) else { return completionHandler(.performDefaultHandling, nil) }
    other.urlSession(session, task: task, didReceive: challenge, completionHandler: completionHandler)
  }

  /// Calls the session's delegate if this is the task's own. Otherwise, there is no stream, and the task fails.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask,
    needNewBodyStream completionHandler: @escaping @Sendable (InputStream?) -> Void
  ) {
    guard let other = other(session, task) else { return completionHandler(nil) }
    other.urlSession(session, task: task, needNewBodyStream: completionHandler)
  }

  /// Calls the session's delegate if this is the task's own. Otherwise, there is no stream, and the task fails.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, needNewBodyStreamFrom offset: Int64,
    completionHandler: @escaping @Sendable (InputStream?) -> Void
  ) {
    guard let other = other(session, task) else { return completionHandler(nil) }
    other.urlSession(session, task: task, needNewBodyStreamFrom: offset, completionHandler: completionHandler)
  }

  /// Calls the session's delegate if this is the task's own.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, didSendBodyData bytesSent: Int64, totalBytesSent: Int64,
    totalBytesExpectedToSend: Int64
  ) {
    other(session, task)?
      .urlSession(
        session, task: task, didSendBodyData: bytesSent, totalBytesSent: totalBytesSent,
        totalBytesExpectedToSend: totalBytesExpectedToSend)
  }

  /// Calls the session's delegate if this is the task's own.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceiveInformationalResponse response: HTTPURLResponse
  ) { other(session, task)?.urlSession(session, task: task, didReceiveInformationalResponse: response) }

  /// Calls the session's delegate if this is the task's own.
  public func urlSession(_ session: URLSession, taskIsWaitingForConnectivity task: URLSessionTask) {
    other(session, task)?.urlSession(session, taskIsWaitingForConnectivity: task)
  }

  /// Calls the session's delegate if this is the task's own.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, didFinishCollecting metrics: URLSessionTaskMetrics
  ) { other(session, task)?.urlSession(session, task: task, didFinishCollecting: metrics) }

  /// Calls the session's delegate if this is the task's own.
  public func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    other(session, task)?.urlSession(session, task: task, didCompleteWithError: error)
  }
}

/// Receives the responses of data and upload tasks. If a completion handler gets the response, only the task's own
/// delegate is called.
public protocol URLSessionDataDelegate: URLSessionTaskDelegate {
  /// The head of the response has arrived. Its body is delivered after the handler is called with `.allow`.
  func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
    completionHandler: @escaping @Sendable (URLSession.ResponseDisposition) -> Void)

  /// The next part of the response's body.
  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data)
}

extension URLSessionDataDelegate {
  private func other(_ session: URLSession, _ task: URLSessionTask) -> (any URLSessionDataDelegate)? {
    task.hasHandler ? nil : session.fallback(from: self, of: task) as? any URLSessionDataDelegate
  }

  /// Calls the session's delegate if this is the task's own. Otherwise, it receives the body.
  public func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
    completionHandler: @escaping @Sendable (URLSession.ResponseDisposition) -> Void
  ) {
    guard let other = other(session, dataTask) else { return completionHandler(.allow) }
    other.urlSession(session, dataTask: dataTask, didReceive: response, completionHandler: completionHandler)
  }

  /// Calls the session's delegate if this is the task's own.
  public func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    other(session, dataTask)?.urlSession(session, dataTask: dataTask, didReceive: data)
  }
}

/// Receives the events of download tasks. If a completion handler receives the file, only the task's own delegate is
/// called, and the end of the download is not reported to it.
public protocol URLSessionDownloadDelegate: URLSessionTaskDelegate {
  /// The file is complete. It is removed when this method returns, so move or open it here.
  func urlSession(_ session: URLSession, downloadTask: URLSessionDownloadTask, didFinishDownloadingTo location: URL)

  /// A part of the file was written.
  func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didWriteData bytesWritten: Int64,
    totalBytesWritten: Int64, totalBytesExpectedToWrite: Int64)

  /// A download continues at byte `fileOffset`.
  func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didResumeAtOffset fileOffset: Int64,
    expectedTotalBytes: Int64)
}

extension URLSessionDownloadDelegate {
  private func other(_ session: URLSession, _ task: URLSessionTask) -> (any URLSessionDownloadDelegate)? {
    task.hasHandler ? nil : session.fallback(from: self, of: task) as? any URLSessionDownloadDelegate
  }

  /// Calls the session's delegate if this is the task's own.
  public func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didWriteData bytesWritten: Int64,
    totalBytesWritten: Int64, totalBytesExpectedToWrite: Int64
  ) {
    other(session, downloadTask)?
      .urlSession(
        session, downloadTask: downloadTask, didWriteData: bytesWritten, totalBytesWritten: totalBytesWritten,
        totalBytesExpectedToWrite: totalBytesExpectedToWrite)
  }

  /// Calls the session's delegate if this is the task's own.
  public func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didResumeAtOffset fileOffset: Int64,
    expectedTotalBytes: Int64
  ) {
    other(session, downloadTask)?
      .urlSession(
        session, downloadTask: downloadTask, didResumeAtOffset: fileOffset, expectedTotalBytes: expectedTotalBytes)
  }
}
