// How tasks are made.

public import Foundation
public import FoundationNetworking

extension URLSession {
  /// What a task with a completion handler calls at its end.
  public typealias DataHandler = @Sendable (Data?, URLResponse?, (any Error)?) -> Void
  /// The file at the URL is removed when the handler returns.
  public typealias DownloadHandler = @Sendable (URL?, URLResponse?, (any Error)?) -> Void

  // MARK: Data

  /// A task that loads what is at a URL, for the session's delegate.
  public func dataTask(with url: URL) -> URLSessionDataTask { dataTask(with: URLRequest(url: url)) }

  /// A task that sends a request, for the session's delegate.
  public func dataTask(with request: URLRequest) -> URLSessionDataTask {
    make(URLSessionDataTask(self, request, .body(of: request), .delegate))
  }

  /// A task that loads what is at a URL.
  public func dataTask(with url: URL, completionHandler: @escaping DataHandler) -> URLSessionDataTask {
    dataTask(with: URLRequest(url: url), completionHandler: completionHandler)
  }

  /// A task that sends a request.
  public func dataTask(with request: URLRequest, completionHandler: @escaping DataHandler) -> URLSessionDataTask {
    make(URLSessionDataTask(self, request, .body(of: request), .data(completionHandler)))
  }

  // MARK: Uploads

  /// A task that uploads a file.
  public func uploadTask(with request: URLRequest, fromFile fileURL: URL) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, request, .file(fileURL), .delegate))
  }

  /// A task that uploads a file.
  public func uploadTask(
    with request: URLRequest, fromFile fileURL: URL, completionHandler: @escaping DataHandler
  ) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, request, .file(fileURL), .data(completionHandler)))
  }

  /// A task that uploads bytes.
  public func uploadTask(with request: URLRequest, from bodyData: Data) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, request, .bytes(bodyData), .delegate))
  }

  /// A task that uploads bytes.
  public func uploadTask(
    with request: URLRequest, from bodyData: Data?, completionHandler: @escaping DataHandler
  ) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, request, .bytes(bodyData ?? Data()), .data(completionHandler)))
  }

  /// A task that uploads a stream, which it asks the delegate for
  /// (``URLSessionTaskDelegate/urlSession(_:task:needNewBodyStream:)``).
  public func uploadTask(withStreamedRequest request: URLRequest) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, request, .stream, .delegate))
  }

  /// A task that continues an upload.
  ///
  /// - Parameter resumeData: from ``URLSessionUploadTask/cancel(byProducingResumeData:)``, or from the error of a task
  ///   that failed. With other data, the task fails.
  public func uploadTask(withResumeData resumeData: Data) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, resuming: resumeData, .delegate))
  }

  /// A task that continues an upload.
  public func uploadTask(
    withResumeData resumeData: Data, completionHandler: @escaping DataHandler
  ) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, resuming: resumeData, .data(completionHandler)))
  }

  // MARK: Downloads

  /// A task that loads what is at a URL into a file.
  public func downloadTask(with url: URL) -> URLSessionDownloadTask { downloadTask(with: URLRequest(url: url)) }

  /// A task that loads the response to a request into a file.
  public func downloadTask(with request: URLRequest) -> URLSessionDownloadTask {
    make(URLSessionDownloadTask(self, request, .body(of: request), .delegate))
  }

  /// A task that loads what is at a URL into a file.
  public func downloadTask(with url: URL, completionHandler: @escaping DownloadHandler) -> URLSessionDownloadTask {
    downloadTask(with: URLRequest(url: url), completionHandler: completionHandler)
  }

  /// A task that loads the response to a request into a file.
  public func downloadTask(
    with request: URLRequest, completionHandler: @escaping DownloadHandler
  ) -> URLSessionDownloadTask {
    make(URLSessionDownloadTask(self, request, .body(of: request), .download(completionHandler)))
  }

  /// A task that continues a download.
  ///
  /// - Parameter resumeData: from ``URLSessionDownloadTask/cancel(byProducingResumeData:)``, or from the error of a
  ///   task that failed. With other data, the task fails.
  public func downloadTask(withResumeData resumeData: Data) -> URLSessionDownloadTask {
    make(URLSessionDownloadTask(self, resuming: resumeData, .delegate))
  }

  /// A task that continues a download.
  public func downloadTask(
    withResumeData resumeData: Data, completionHandler: @escaping DownloadHandler
  ) -> URLSessionDownloadTask {
    make(URLSessionDownloadTask(self, resuming: resumeData, .download(completionHandler)))
  }

  private func make<Task: URLSessionTask>(_ task: Task) -> Task {
    if !acceptsTasks { task.engine?.refuse() }
    begin(task)
    if let delegate = delegate as? any URLSessionTaskDelegate {
      call { [self] in delegate.urlSession(self, didCreateTask: task) }
    }
    return task
  }
}
