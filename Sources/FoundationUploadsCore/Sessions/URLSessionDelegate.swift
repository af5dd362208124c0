// What a session tells its delegates, and what it asks them, by Apple's names.
//
// Every method has a default implementation, in place of Objective-C's optional methods. That of a task's own delegate
// calls the session's delegate.

public import Foundation
public import FoundationNetworking

/// Told about a session. All calls come on the session's delegate queue.
public protocol URLSessionDelegate: NSObjectProtocol, Sendable {
  /// The session was invalidated, and its last task is over.
  func urlSession(_ session: URLSession, didBecomeInvalidWithError error: (any Error)?)
  /// Called after the events that a background session has missed, if there were any.
  func urlSessionDidFinishEvents(forBackgroundURLSession session: URLSession)
}

extension URLSessionDelegate {
  /// Does nothing.
  public func urlSession(_ session: URLSession, didBecomeInvalidWithError error: (any Error)?) {}
  /// Does nothing.
  public func urlSessionDidFinishEvents(forBackgroundURLSession session: URLSession) {}
}

/// Told about tasks of every kind.
public protocol URLSessionTaskDelegate: URLSessionDelegate {
  /// The task exists. It has not been resumed.
  func urlSession(_ session: URLSession, didCreateTask task: URLSessionTask)

  /// The server redirects. Call the handler with `request`, another request, or nil to take the redirect as the answer.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping @Sendable (URLRequest?) -> Void)

  /// The server wants credentials.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
    completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void)

  /// The task needs a stream for its body: at its start, and again after a redirect or a challenge.
  func urlSession(
    _ session: URLSession, task: URLSessionTask,
    needNewBodyStream completionHandler: @escaping @Sendable (InputStream?) -> Void)

  /// A resumed upload needs a stream that begins at byte `offset` of the body.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, needNewBodyStreamFrom offset: Int64,
    completionHandler: @escaping @Sendable (InputStream?) -> Void)

  /// A part of the body was sent.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, didSendBodyData bytesSent: Int64, totalBytesSent: Int64,
    totalBytesExpectedToSend: Int64)

  /// The server has sent an interim response, such as 103.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceiveInformationalResponse response: HTTPURLResponse)

  /// The server cannot be reached, and the task waits for it.
  func urlSession(_ session: URLSession, taskIsWaitingForConnectivity task: URLSessionTask)

  /// The task is over, and this is what its requests have taken. Comes before the last call, and before a completion
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

  /// Asks the session's delegate if this is the task's own, and follows the redirect otherwise.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping @Sendable (URLRequest?) -> Void
  ) {
    guard let other = other(session, task) else { return completionHandler(request) }
    other.urlSession(
      session, task: task, willPerformHTTPRedirection: response, newRequest: request,
      completionHandler: completionHandler)
  }

  /// Asks the session's delegate if this is the task's own, and handles the challenge as without a delegate otherwise.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
    completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void
  ) {
    guard let other = other(session, task) else { return completionHandler(.performDefaultHandling, nil) }
    other.urlSession(session, task: task, didReceive: challenge, completionHandler: completionHandler)
  }

  /// Asks the session's delegate if this is the task's own. Otherwise there is no stream, and the task fails.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask,
    needNewBodyStream completionHandler: @escaping @Sendable (InputStream?) -> Void
  ) {
    guard let other = other(session, task) else { return completionHandler(nil) }
    other.urlSession(session, task: task, needNewBodyStream: completionHandler)
  }

  /// Asks the session's delegate if this is the task's own. Otherwise there is no stream, and the task fails.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, needNewBodyStreamFrom offset: Int64,
    completionHandler: @escaping @Sendable (InputStream?) -> Void
  ) {
    guard let other = other(session, task) else { return completionHandler(nil) }
    other.urlSession(session, task: task, needNewBodyStreamFrom: offset, completionHandler: completionHandler)
  }

  /// Tells the session's delegate if this is the task's own.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, didSendBodyData bytesSent: Int64, totalBytesSent: Int64,
    totalBytesExpectedToSend: Int64
  ) {
    other(session, task)?
      .urlSession(
        session, task: task, didSendBodyData: bytesSent, totalBytesSent: totalBytesSent,
        totalBytesExpectedToSend: totalBytesExpectedToSend)
  }

  /// Tells the session's delegate if this is the task's own.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceiveInformationalResponse response: HTTPURLResponse
  ) { other(session, task)?.urlSession(session, task: task, didReceiveInformationalResponse: response) }

  /// Tells the session's delegate if this is the task's own.
  public func urlSession(_ session: URLSession, taskIsWaitingForConnectivity task: URLSessionTask) {
    other(session, task)?.urlSession(session, taskIsWaitingForConnectivity: task)
  }

  /// Tells the session's delegate if this is the task's own.
  public func urlSession(
    _ session: URLSession, task: URLSessionTask, didFinishCollecting metrics: URLSessionTaskMetrics
  ) { other(session, task)?.urlSession(session, task: task, didFinishCollecting: metrics) }

  /// Tells the session's delegate if this is the task's own.
  public func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    other(session, task)?.urlSession(session, task: task, didCompleteWithError: error)
  }
}

/// Told about the responses of data and upload tasks. Where a completion handler gets the response, only the task's own
/// delegate is told.
public protocol URLSessionDataDelegate: URLSessionTaskDelegate {
  /// The head of the response is there. Its body is delivered once the handler is called with `.allow`.
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

  /// Asks the session's delegate if this is the task's own, and receives the body otherwise.
  public func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
    completionHandler: @escaping @Sendable (URLSession.ResponseDisposition) -> Void
  ) {
    guard let other = other(session, dataTask) else { return completionHandler(.allow) }
    other.urlSession(session, dataTask: dataTask, didReceive: response, completionHandler: completionHandler)
  }

  /// Tells the session's delegate if this is the task's own.
  public func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    other(session, dataTask)?.urlSession(session, dataTask: dataTask, didReceive: data)
  }
}

/// Told about download tasks. Where a completion handler gets the file, only the task's own delegate is told, and not
/// that the download is finished.
public protocol URLSessionDownloadDelegate: URLSessionTaskDelegate {
  /// The file is complete. It is removed when this method returns: move or open it here.
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

  /// Tells the session's delegate if this is the task's own.
  public func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didWriteData bytesWritten: Int64,
    totalBytesWritten: Int64, totalBytesExpectedToWrite: Int64
  ) {
    other(session, downloadTask)?
      .urlSession(
        session, downloadTask: downloadTask, didWriteData: bytesWritten, totalBytesWritten: totalBytesWritten,
        totalBytesExpectedToWrite: totalBytesExpectedToWrite)
  }

  /// Tells the session's delegate if this is the task's own.
  public func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didResumeAtOffset fileOffset: Int64,
    expectedTotalBytes: Int64
  ) {
    other(session, downloadTask)?
      .urlSession(
        session, downloadTask: downloadTask, didResumeAtOffset: fileOffset, expectedTotalBytes: expectedTotalBytes)
  }
}
