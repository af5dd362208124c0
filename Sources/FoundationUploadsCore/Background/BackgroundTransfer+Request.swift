// The request that a background task sends to the agent.

internal import Downloads
internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import HTTPMessages
internal import TransferClient
internal import UploadClient

extension BackgroundTransfer {
  /// The request for the agent.
  func transferRequest() throws -> TransferRequest {
    let url = task.originalRequest?.url
    if let error = background.error { throw error }
    guard !isUnwanted else { throw URLError(.cancelled, url, "the session is invalid") }
    guard completion.isDelegate, let path = path else {
      throw URLError(
        .unsupportedURL, url,
        "a background session uploads files and downloads with GET, and calls its delegate: use "
          + "uploadTask(with:fromFile:) or downloadTask(with:)")
    }
    guard let original = task.originalRequest,
      let request = UploadRequest(original, session.configuration, isAtOtherOrigin: isAtOtherOrigin)
    else { throw URLError(.unsupportedURL, url) }
    if task is URLSessionDownloadTask, request.fields.contains("Range") {
      throw URLError(
        .unsupportedURL, url,
        "a background session sets Range itself: use another session for a request with Range")
    }
    // The agent receives the valid fields only.
    do throws(UploadError) { try request.validate() } catch { throw URLError(error, url) }
    let settings = session.configuration
    var transfer = TransferRequest(key: key, url: request.url, path: path)
    if task is URLSessionDownloadTask {
      transfer.kind = .download
    } else {
      transfer.file = FileStamp.of(path)
    }
    if case .resumedDownload(let record) = content {
      var checkpoint = DownloadCheckpoint(record.resumeData)
      // Bytes of the file beyond that are not trustworthy.
      checkpoint.boot = ""
      transfer.resumeData = checkpoint.text
    }
    transfer.session = background.identifier
    transfer.task = Int64(task.taskIdentifier)
    transfer.method = request.method
    transfer.fields = request.fields.lines
    transfer.note = task.taskDescription
    transfer.isAtOtherOrigin = isAtOtherOrigin
    func absolute(_ path: String?) -> String? { path.map { URL(fileURLWithPath: $0).path } }
    transfer.certificateAuthorities = absolute(request.certificateAuthorities)
    (transfer.clientCertificate, transfer.clientKey) = (
      absolute(request.clientCertificate), absolute(request.clientKey)
    )
    func milliseconds(_ limit: Duration) -> Int64 { limit.nanoseconds / 1_000_000 }
    transfer.connectLimit = milliseconds(request.limits.connect)
    transfer.stallLimit = milliseconds(request.limits.unacknowledged)
    transfer.responseLimit = milliseconds(request.limits.response)
    func time(_ date: Date) -> Int64 { Int64(max(0, min(date.timeIntervalSince1970, 1e12)) * 1000) }
    transfer.earliestBegin = task.earliestBeginDate.map(time)
    transfer.isDiscretionary = settings.isDiscretionary
    transfer.allowsExpensive = settings.allowsExpensiveNetworkAccess
    transfer.allowsConstrained = settings.allowsConstrainedNetworkAccess
    func expected(_ count: Int64) -> Int64? { count == NSURLSessionTransferSizeUnknown ? nil : max(0, count) }
    transfer.expectedToSend = expected(task.countOfBytesClientExpectsToSend)
    transfer.expectedToReceive = expected(task.countOfBytesClientExpectsToReceive)
    transfer.deadline = time(Date(timeIntervalSinceNow: settings.timeoutIntervalForResource))
    return transfer
  }

  /// The file of an upload. Empty for a download, which the agent stores. Nil for work that the agent does not support.
  private var path: String? {
    switch content {
    case .file(let file) where file.isFileURL && task is URLSessionUploadTask: file.standardizedFileURL.path
    case .none where task is URLSessionDownloadTask && task.originalRequest?.httpMethod ?? "GET" == "GET": ""
    case .resumedDownload(let record) where record.request.method == "GET": ""
    default: nil
    }
  }
}
