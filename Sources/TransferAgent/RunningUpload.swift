// One running upload of the agent: the engine's stream, and its events for the queue.

internal import Digests
internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import ResumableUploads
internal import TransferClient
internal import UploadClient

enum RunningUpload {
  /// Opens the file, which may take a while.
  ///
  /// - Returns: the file, or how the transfer ends because the file has changed.
  static func file(_ transfer: Transfer) -> Result<UploadFile, TransferFailure> {
    let digest = transfer.request.digest.flatMap { DigestAlgorithm(rawValue: $0) }
    do throws(UploadFileError) {
      let file = try UploadFile(path: transfer.request.path, digest: digest)
      guard file.version.isSame(asDescribed: transfer.version) else {
        return .failure(
          TransferFailure(
            cause: "fileChanged",
            message: "\(transfer.request.path) has changed since the transfer began. Upload it again."))
      }
      return .success(file)
    } catch {
      return .failure(TransferFailure(error, path: transfer.request.path))
    }
  }

  /// Makes the stream, which begins when it is started.
  static func streamer(_ transfer: Transfer, _ file: UploadFile, _ session: UploadSession) -> LiveStreamer {
    LiveStreamer(file, configuration: configuration(transfer), session: session)
  }

  static func configuration(_ transfer: Transfer) -> LiveStreamConfiguration {
    let asked = transfer.request
    var request = asked.httpRequest
    request.limits.unacknowledged = TransferRequest.duration(asked.stallLimit) ?? request.limits.unacknowledged
    // The most that libcurl reads at once, because the number of system calls limits the throughput.
    request.uploadBufferSize = 512 << 10
    var configuration = LiveStreamConfiguration(request: request)
    configuration.mayUsePOST = asked.mayUsePOST
    configuration.resumable = .init(rawValue: asked.resumable) ?? .auto
    configuration.keepsOrigin = asked.keepsOrigin
    configuration.digest = asked.digest.flatMap { DigestAlgorithm(rawValue: $0) }
    configuration.rollOver.after = TransferRequest.duration(asked.rollOverAfter) ?? configuration.rollOver.after
    configuration.rollOver.size = asked.rollOverSize ?? .max
    asked.adapt(&configuration.retry)
    if let path = asked.tokenFile { configuration.bearerToken = { TransferRequest.token(inFile: path) } }
    if configuration.bearerToken != nil, request.bearerToken == nil {
      configuration.request.bearerToken = configuration.bearerToken?()
    }
    if let id = asked.streamID { configuration.streamID = id }
    if let data = transfer.resumeData.flatMap({ ResumeData($0) }) {
      configuration.resumeData = data
      configuration.streamID = data.streamID ?? configuration.streamID
    }
    return configuration
  }

  /// What an event of the stream means for the queue; nil for nothing.
  static func news(_ event: LiveStreamEvent, of transfer: Transfer) -> TransferNews? {
    switch event {
    case .upload(.created(let data)): return .created(data)
    case .acknowledged(let offset): return .acknowledged(offset)
    case .outage(let attempt), .attemptFailed(let attempt): return .trouble("\(attempt.cause)")
    case .streaming: return .trouble(nil)
    case .ended(let summary): return .ended(ending(summary, transfer))
    default: return nil
    }
  }

  private static func ending(_ summary: StreamSummary, _ transfer: Transfer) -> TransferQueue.Ending {
    if let error = summary.error, error.kind == .cancelled {
      return .stopped(resumeData: summary.resumeData?.text)
    }
    var result: TransferResult
    if let error = summary.error {
      // The file is the only source.
      let sourceCause = error.isFileChanged ? "fileChanged" : "fileUnreadable"
      let cause = error.kind == .source ? sourceCause : error.kind.rawValue
      result = TransferResult(.failed, cause: cause, message: error.description)
      result.byteCount = summary.progress.acknowledged
    } else {
      result = TransferResult(.completed)
      result.byteCount = transfer.size ?? summary.progress.acknowledged
      result.isVerified = summary.verified == transfer.size
    }
    summary.response.map { result.add($0) }
    return summary.error == nil ? .completed(result) : .failed(result)
  }
}
