// Transfers that are awaited. Cancelling the Swift task cancels the transfer.

internal import EventLoops
public import Foundation
public import FoundationNetworking

extension URLSession {
  /// Loads the resource at a URL.
  public func data(from url: URL, delegate: (any URLSessionTaskDelegate)? = nil) async throws -> (Data, URLResponse) {
    try await data(for: URLRequest(url: url), delegate: delegate)
  }

  /// Sends a request, and returns its response.
  ///
  /// - Throws: `URLError`.
  public func data(
    for request: URLRequest, delegate: (any URLSessionTaskDelegate)? = nil
  ) async throws -> (Data, URLResponse) {
    try await run(delegate) { self.dataTask(with: request, completionHandler: $0) }
  }

  /// Uploads a file.
  ///
  /// - Throws: `URLError`, with `uploadTaskResumeData` if the server can resume the upload.
  public func upload(
    for request: URLRequest, fromFile fileURL: URL, delegate: (any URLSessionTaskDelegate)? = nil
  ) async throws -> (Data, URLResponse) {
    try await run(delegate) { self.uploadTask(with: request, fromFile: fileURL, completionHandler: $0) }
  }

  /// Uploads bytes.
  ///
  /// - Throws: `URLError`, with `uploadTaskResumeData` if the server can resume the upload.
  public func upload(
    for request: URLRequest, from bodyData: Data, delegate: (any URLSessionTaskDelegate)? = nil
  ) async throws -> (Data, URLResponse) {
    try await run(delegate) { self.uploadTask(with: request, from: bodyData, completionHandler: $0) }
  }

  /// Continues an upload.
  ///
  /// - Throws: `URLError`.
  public func upload(
    resumeFrom resumeData: Data, delegate: (any URLSessionTaskDelegate)? = nil
  ) async throws -> (Data, URLResponse) {
    try await run(delegate) { self.uploadTask(withResumeData: resumeData, completionHandler: $0) }
  }

  /// Downloads the resource at a URL into a file, which the caller owns.
  public func download(
    from url: URL, delegate: (any URLSessionTaskDelegate)? = nil
  ) async throws -> (URL, URLResponse) {
    try await download(for: URLRequest(url: url), delegate: delegate)
  }

  /// Downloads the response to a request into a file, which the caller owns.
  ///
  /// - Throws: `URLError`, with `downloadTaskResumeData` if the server can resume the download.
  public func download(
    for request: URLRequest, delegate: (any URLSessionTaskDelegate)? = nil
  ) async throws -> (URL, URLResponse) {
    try await run(delegate) { self.downloadTask(with: request, completionHandler: keepingFile($0)) }
  }

  /// Continues a download into a file, which the caller owns.
  ///
  /// - Throws: `URLError`.
  public func download(
    resumeFrom resumeData: Data, delegate: (any URLSessionTaskDelegate)? = nil
  ) async throws -> (URL, URLResponse) {
    try await run(delegate) { self.downloadTask(withResumeData: resumeData, completionHandler: keepingFile($0)) }
  }

  /// Moves the file, because it is removed when the handler of a download returns.
  private func keepingFile(_ handler: @escaping Handler<URL>) -> Handler<URL> {
    { location, response, error in
      guard let location else { return handler(nil, response, error) }
      let own = location.deletingLastPathComponent().appendingPathComponent("\(UUID().uuidString).download")
      do {
        try FileManager.default.moveItem(at: location, to: own)
        handler(own, response, nil)
      } catch {
        handler(nil, response, URLError(.cannotMoveFile, userInfo: [NSUnderlyingErrorKey: error]))
      }
    }
  }

  private typealias Handler<Value> = @Sendable (Value?, URLResponse?, (any Error)?) -> Void

  private func run<Value: Sendable>(
    _ delegate: (any URLSessionTaskDelegate)?, _ make: (@escaping Handler<Value>) -> URLSessionTask
  ) async throws -> (Value, URLResponse) {
    let box = CancellableTask()
    return try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let task = make { value, response, error in
          if let value, let response {
            continuation.resume(returning: (value, response))
          } else {
            continuation.resume(throwing: error ?? URLError(.badServerResponse))
          }
        }
        if let delegate { task.delegate = delegate }
        box.begin(task)
        task.resume()
      }
    } onCancel: {
      box.cancel()
    }
  }
}

/// A task that may be cancelled before it exists.
private final class CancellableTask: Sendable {
  private struct State: Sendable {
    var task: URLSessionTask?
    var isCancelled = false
  }

  private let state = Lock(State())

  func begin(_ task: URLSessionTask) {
    let isCancelled = state.withLock { state in
      state.task = task
      return state.isCancelled
    }
    if isCancelled { task.cancel() }
  }

  func cancel() {
    state.withLock { state in
      state.isCancelled = true
      return state.task
    }?.cancel()
  }
}
