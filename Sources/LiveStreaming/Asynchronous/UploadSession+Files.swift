// Uploads of files that tasks start and await.

internal import ResumableUploads
public import UploadClient

extension UploadSession {
  /// Uploads a file with PUT, and resumes after every interruption, for as long as that takes. Cancelling the task
  /// cancels the upload.
  ///
  /// - Parameters:
  ///   - path: a regular file, which must not change meanwhile.
  ///   - url: the absolute `http` or `https` URL of what the file becomes at the server.
  /// - Returns: the server's confirmation that it has the whole file.
  /// - Throws: ``LiveStreaming/FileUploadError``, with resume data if the server can resume the upload.
  public func upload(file path: String, to url: String) async throws(FileUploadError) -> UploadReceipt {
    try await uploadTask(file: path, to: url).value
  }

  /// Uploads a file, and resumes after every interruption. Cancelling the task cancels the upload.
  ///
  /// - Parameters:
  ///   - path: a regular file, which must not change meanwhile.
  ///   - configuration: ``LiveStreaming/LiveStreamConfiguration/file(to:)``, and what is to be different.
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
  ///   - configuration: with what the request requires besides its URL, such as a bearer token; nil for the defaults.
  ///     Its URL and its stream ID are those of the resume data.
  /// - Returns: the server's confirmation that it has the whole file.
  /// - Throws: ``LiveStreaming/FileUploadError``. ``LiveStreaming/FileUploadError/file(_:)`` if the file has changed.
  public func upload(
    resuming data: FileResumeData, configuration: LiveStreamConfiguration? = nil
  ) async throws(FileUploadError) -> UploadReceipt {
    try await uploadTask(resuming: data, configuration: configuration).value
  }

  /// Begins to upload a file with PUT, to be observed, cancelled and awaited.
  ///
  /// - Parameters:
  ///   - path: a regular file, which must not change meanwhile.
  ///   - url: the absolute `http` or `https` URL of what the file becomes at the server.
  /// - Throws: ``LiveStreaming/FileUploadError/file(_:)`` if the file cannot be read.
  public func uploadTask(file path: String, to url: String) throws(FileUploadError) -> FileUploadTask {
    try uploadTask(file: path, configuration: .file(to: url))
  }

  /// Begins to upload a file, to be observed, cancelled and awaited.
  ///
  /// - Parameters:
  ///   - path: a regular file, which must not change meanwhile. If a digest is asked for, the calling thread reads it
  ///     once.
  ///   - configuration: ``LiveStreaming/LiveStreamConfiguration/file(to:)``, and what is to be different.
  /// - Throws: ``LiveStreaming/FileUploadError/file(_:)`` if the file cannot be read.
  public func uploadTask(
    file path: String, configuration: LiveStreamConfiguration
  ) throws(FileUploadError) -> FileUploadTask {
    let file: UploadFile
    do throws(UploadFileError) {
      file = try UploadFile(path: path, digest: configuration.digest)
    } catch { throw .file(error) }
    return uploadTask(file, configuration)
  }

  /// Continues an upload that was cancelled or failed, to be observed, cancelled and awaited.
  ///
  /// - Parameters:
  ///   - data: from ``LiveStreaming/FileUploadTask/cancelProducingResumeData()`` or
  ///     ``LiveStreaming/FileUploadError/resumeData``.
  ///   - configuration: with what the request requires besides its URL, such as a bearer token; nil for the defaults.
  ///     Its URL and its stream ID are those of the resume data.
  /// - Throws: ``LiveStreaming/FileUploadError/file(_:)`` if the file cannot be read, or has changed.
  public func uploadTask(
    resuming data: FileResumeData, configuration: LiveStreamConfiguration? = nil
  ) throws(FileUploadError) -> FileUploadTask {
    var configuration = configuration ?? .file(to: data.upload.target)
    // The record has no user and password; the configuration's URL may.
    if UploadRequest.withoutCredentials(configuration.request.url) != data.upload.target {
      configuration.request.url = data.upload.target
    }
    configuration.resumeData = data.upload
    configuration.streamID = data.upload.streamID ?? configuration.streamID
    let file: UploadFile
    do throws(UploadFileError) {
      file = try UploadFile(path: data.path, digest: configuration.digest)
    } catch { throw .file(error) }
    guard file.version.isSame(asDescribed: data.version) else {
      throw .file(.changed("it is not the file that was interrupted"))
    }
    return uploadTask(file, configuration)
  }

  private func uploadTask(_ file: UploadFile, _ configuration: LiveStreamConfiguration) -> FileUploadTask {
    FileUploadTask(
      file, StreamOperation(LiveStreamer(file, configuration: configuration, session: self), self))
  }
}

extension LiveStreamConfiguration {
  /// For the upload of a file: PUT, or POST where the server asks for it, and requests as long as the server permits.
  ///
  /// - Parameter url: the absolute `http` or `https` URL of what the file becomes at the server.
  public static func file(to url: String) -> LiveStreamConfiguration {
    var configuration = LiveStreamConfiguration(to: url, contentType: "application/octet-stream")
    configuration.request.method = "PUT"
    configuration.mayUsePOST = true
    // As much as libcurl takes at once: for throughput, system calls are what counts.
    configuration.request.uploadBufferSize = 512 << 10
    configuration.rollOver.size = .max
    return configuration
  }
}
