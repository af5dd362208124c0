// The methods that create tasks.

public import Foundation
public import FoundationNetworking

extension URLSession {
  /// The completion handler of a task.
  public typealias DataHandler = @Sendable (Data?, URLResponse?, (any Error)?) -> Void
  /// The completion handler of a download. The file at the URL is removed when the handler returns.
  public typealias DownloadHandler = @Sendable (URL?, URLResponse?, (any Error)?) -> Void

  // MARK: Data

  /// Creates a task that loads the resource at a URL, for the session's delegate.
  public func dataTask(with url: URL) -> URLSessionDataTask { dataTask(with: URLRequest(url: url)) }

  /// Creates a task that sends a request, for the session's delegate.
  public func dataTask(with request: URLRequest) -> URLSessionDataTask {
    make(URLSessionDataTask(self, request, .body(of: request), .delegate))
  }

  /// Creates a task that loads the resource at a URL.
  public func dataTask(with url: URL, completionHandler: @escaping DataHandler) -> URLSessionDataTask {
    dataTask(with: URLRequest(url: url), completionHandler: completionHandler)
  }

  /// Creates a task that sends a request.
  public func dataTask(with request: URLRequest, completionHandler: @escaping DataHandler) -> URLSessionDataTask {
    make(URLSessionDataTask(self, request, .body(of: request), .data(completionHandler)))
  }

  // MARK: Uploads

  /// Creates a task that uploads a file.
  public func uploadTask(with request: URLRequest, fromFile fileURL: URL) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, request, .file(fileURL), .delegate))
  }

  /// Creates a task that uploads a file.
  public func uploadTask(
    with request: URLRequest, fromFile fileURL: URL, completionHandler: @escaping DataHandler
  ) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, request, .file(fileURL), .data(completionHandler)))
  }

  /// Creates a task that uploads bytes.
  public func uploadTask(with request: URLRequest, from bodyData: Data) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, request, .bytes(bodyData), .delegate))
  }

  /// Creates a task that uploads bytes.
  public func uploadTask(
    with request: URLRequest, from bodyData: Data?, completionHandler: @escaping DataHandler
  ) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, request, .bytes(bodyData ?? Data()), .data(completionHandler)))
  }

  /// Creates a task that uploads a stream. The task asks the delegate for the stream
  /// (``URLSessionTaskDelegate/urlSession(_:task:needNewBodyStream:)``).
  public func uploadTask(withStreamedRequest request: URLRequest) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, request, .stream, .delegate))
  }

  /// Creates a task that continues an upload.
  ///
  /// - Parameter resumeData: from ``URLSessionUploadTask/cancel(byProducingResumeData:)``, or from the error of a
  ///   failed task. With other data, the task fails.
  public func uploadTask(withResumeData resumeData: Data) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, resuming: resumeData, .delegate))
  }

  /// Creates a task that continues an upload.
  public func uploadTask(
    withResumeData resumeData: Data, completionHandler: @escaping DataHandler
  ) -> URLSessionUploadTask {
    make(URLSessionUploadTask(self, resuming: resumeData, .data(completionHandler)))
  }

  // MARK: Downloads

  /// Creates a task that downloads the resource at a URL into a file.
  public func downloadTask(with url: URL) -> URLSessionDownloadTask { downloadTask(with: URLRequest(url: url)) }

  /// Creates a task that downloads the response to a request into a file.
  public func downloadTask(with request: URLRequest) -> URLSessionDownloadTask {
    make(URLSessionDownloadTask(self, request, .body(of: request), .delegate))
  }

  /// Creates a task that downloads the resource at a URL into a file.
  public func downloadTask(with url: URL, completionHandler: @escaping DownloadHandler) -> URLSessionDownloadTask {
    downloadTask(with: URLRequest(url: url), completionHandler: completionHandler)
  }

  /// Creates a task that downloads the response to a request into a file.
  public func downloadTask(
    with request: URLRequest, completionHandler: @escaping DownloadHandler
  ) -> URLSessionDownloadTask {
    make(URLSessionDownloadTask(self, request, .body(of: request), .download(completionHandler)))
  }

  /// Creates a task that continues a download.
  ///
  /// - Parameter resumeData: from ``URLSessionDownloadTask/cancel(byProducingResumeData:)``, or from the error of a
  ///   failed task. With other data, the task fails.
  public func downloadTask(withResumeData resumeData: Data) -> URLSessionDownloadTask {
    make(URLSessionDownloadTask(self, resuming: resumeData, .delegate))
  }

  /// Creates a task that continues a download.
  public func downloadTask(
    withResumeData resumeData: Data, completionHandler: @escaping DownloadHandler
  ) -> URLSessionDownloadTask {
    make(URLSessionDownloadTask(self, resuming: resumeData, .download(completionHandler)))
  }

  private func make<Task: URLSessionTask>(_ task: Task) -> Task {
    let isAccepted = begin(task, isNew: true)
    if !isAccepted { task.engine?.refuse() }
    if let delegate = delegateOfTasks as? any URLSessionTaskDelegate {
      call { [self] in delegate.urlSession(self, didCreateTask: task) }
    }
    let isCancelled = endCreation(of: task)
    // A refused task fails now, because the session ends only after its last task, and the program may never resume it.
    if !isAccepted { task.resume() } else if isCancelled { task.cancel() }
    return task
  }
}
