// Uploads of files that tasks start and await.

internal import ResumableUploads
public import UploadClient

extension UploadSession {
  /// Uploads a file with PUT, and resumes after every interruption without a time limit. Cancelling the task cancels
  /// the upload.
  ///
  /// - Parameters:
  ///   - path: a regular file, which must not change during the upload.
  ///   - url: an absolute `http` or `https` URL. The name of the file is appended if the URL's path names no file, as
  ///     in `https://example.com/archive/`. The server may store it under another name
  ///     (``LiveStreaming/UploadReceipt/storedName``).
  /// - Returns: the server's confirmation that it has the whole file.
  /// - Throws: ``LiveStreaming/FileUploadError``, with resume data if the server can resume the upload.
  public func upload(file path: String, to url: String) async throws(FileUploadError) -> UploadReceipt {
    try await uploadTask(file: path, to: url).value
  }

  /// Uploads a file, and resumes after every interruption. Cancelling the task cancels the upload.
  ///
  /// - Parameters:
  ///   - path: a regular file, which must not change during the upload.
  ///   - configuration: ``LiveStreaming/LiveStreamConfiguration/file(to:)`` with your changes.
  /// - Returns: the server's confirmation that it has the whole file.
  /// - Throws: ``LiveStreaming/FileUploadError``, with resume data if the server can resume the upload.
  public func upload(
    file path: String, configuration: LiveStreamConfiguration
  ) async throws(FileUploadError) -> UploadReceipt {
    try await uploadTask(file: path, configuration: configuration).value
  }

  /// Continues an upload that was cancelled or failed, in this process or an earlier one.
  ///
  /// - Parameters:
  ///   - data: from ``LiveStreaming/FileUploadTask/cancelProducingResumeData()`` or
  ///     ``LiveStreaming/FileUploadError/resumeData``.
  ///   - configuration: the configuration of the interrupted upload. The resume data contains none of its settings,
  ///     such as a bearer token or a digest. Nil means the defaults. The stream ID is that of the resume data.
  /// - Returns: the server's confirmation that it has the whole file.
  /// - Throws: ``LiveStreaming/FileUploadError``. The error is ``LiveStreaming/FileUploadError/file(_:)`` if the file
  ///   has changed, and of kind ``LiveStreaming/LiveStreamError/Kind/invalidRequest`` if the configuration has another
  ///   URL.
  public func upload(
    resuming data: FileResumeData, configuration: LiveStreamConfiguration? = nil
  ) async throws(FileUploadError) -> UploadReceipt {
    try await uploadTask(resuming: data, configuration: configuration).value
  }

  /// Starts the upload of a file with PUT, and returns a task that you can observe, cancel and await.
  ///
  /// - Parameters:
  ///   - path: a regular file, which must not change during the upload.
  ///   - url: an absolute `http` or `https` URL. The name of the file is appended if the URL's path names no file, as
  ///     in `https://example.com/archive/`. The server may store it under another name
  ///     (``LiveStreaming/UploadReceipt/storedName``).
  /// - Throws: ``LiveStreaming/FileUploadError/file(_:)`` if the file cannot be read, and
  ///   ``LiveStreaming/FileUploadError/failed(_:_:)`` if a later attempt may succeed.
  public func uploadTask(file path: String, to url: String) throws(FileUploadError) -> FileUploadTask {
    try uploadTask(file: path, configuration: .file(to: url))
  }

  /// Starts the upload of a file, and returns a task that you can observe, cancel and await.
  ///
  /// - Parameters:
  ///   - path: a regular file, which must not change during the upload. If a digest is requested, the calling thread
  ///     reads it once.
  ///   - configuration: ``LiveStreaming/LiveStreamConfiguration/file(to:)`` with your changes.
  /// - Throws: ``LiveStreaming/FileUploadError/file(_:)`` if the file cannot be read, and
  ///   ``LiveStreaming/FileUploadError/failed(_:_:)`` if a later attempt may succeed.
  public func uploadTask(
    file path: String, configuration: LiveStreamConfiguration
  ) throws(FileUploadError) -> FileUploadTask {
    let file: UploadFile
    do throws(UploadFileError) {
      file = try UploadFile(path: path, digest: configuration.digest)
    } catch { throw FileUploadError(error, at: path) }
    var configuration = configuration
    configuration.request.url = Self.url(configuration.request.url, ofFile: path)
    return FileUploadTask(file, configuration, self)
  }

  /// Continues an upload that was cancelled or failed, and returns a task that you can observe, cancel and await.
  ///
  /// - Parameters:
  ///   - data: from ``LiveStreaming/FileUploadTask/cancelProducingResumeData()`` or
  ///     ``LiveStreaming/FileUploadError/resumeData``.
  ///   - configuration: the configuration of the interrupted upload. The resume data contains none of its settings,
  ///     such as a bearer token or a digest. Nil means the defaults. The stream ID is that of the resume data.
  /// - Throws: ``LiveStreaming/FileUploadError/file(_:)`` if the file cannot be read, or has changed, and
  ///   ``LiveStreaming/FileUploadError/failed(_:_:)`` with the resume data if a later attempt may succeed. The error is
  ///   of kind ``LiveStreaming/LiveStreamError/Kind/invalidRequest`` if the configuration has another URL.
  public func uploadTask(
    resuming data: FileResumeData, configuration: LiveStreamConfiguration? = nil
  ) throws(FileUploadError) -> FileUploadTask {
    var configuration = configuration ?? .file(to: data.upload.target)
    configuration.request.url = Self.url(configuration.request.url, ofFile: data.path)
    // The record has no user and password. The configuration's URL may have them.
    guard UploadRequest.withoutCredentials(configuration.request.url) == data.upload.target else {
      let own = UploadRequest.withoutSecrets(data.upload.target)
      let other = UploadRequest.withoutSecrets(configuration.request.url)
      throw .failed(
        LiveStreamError(.invalidRequest, "the upload to resume has the URL \(own), and not \(other)"), data)
    }
    configuration.resumeData = data.upload
    configuration.streamID = data.upload.streamID ?? configuration.streamID
    let file: UploadFile
    do throws(UploadFileError) {
      file = try UploadFile(path: data.path, digest: configuration.digest)
    } catch { throw FileUploadError(error, at: data.path, resuming: data) }
    guard file.version.isSame(asDescribed: data.version) else { throw .changedSince(data.path) }
    return FileUploadTask(file, configuration, self)
  }

  /// The URL at which a file is uploaded. It is in ASCII, because the text of resume data has no other characters.
  private static func url(_ url: String, ofFile path: String) -> String {
    let whole = UploadRequest.appending(nameOf: path, to: url)
    // Without an encoding of its host, the request fails.
    return UploadRequest.ascii(whole) ?? whole
  }
}

extension LiveStreamConfiguration {
  /// The configuration for the upload of a file. It uses PUT, or POST if the server requires it, and requests as long
  /// as the server permits.
  ///
  /// - Parameter url: an absolute `http` or `https` URL. The name of the file is appended if the URL's path names no
  ///   file.
  public static func file(to url: String) -> LiveStreamConfiguration {
    var configuration = LiveStreamConfiguration(to: url, contentType: "application/octet-stream")
    configuration.request.method = "PUT"
    configuration.mayUsePOST = true
    // The most that libcurl reads at once. The number of system calls limits the throughput.
    configuration.request.uploadBufferSize = 512 << 10
    configuration.rollOver.size = .max
    return configuration
  }
}
