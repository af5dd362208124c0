// One upload of the agent while it runs: the engine's stream, and what the queue hears of it.

internal import Digests
internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import ResumableUploads
internal import TransferClient
internal import UploadClient

/// What the agent hears of an upload, on whatever thread.
enum UploadNews: Sendable {
  case created(ResumeData)
  case acknowledged(UInt64)
  /// Why it waits for its next attempt; nil when it does no more.
  case trouble(String?)
  case ended(TransferQueue.Ending)
}

enum RunningUpload {
  /// How much of a response's body a program gets, in bytes.
  static let responseBodyLimit = 256 << 10
  /// The longest pause between two attempts.
  static let longestPause = Duration.seconds(15 * 60)

  /// Opens the file, which may take a while.
  ///
  /// - Returns: the file, or how the transfer ends because it is not what it was.
  static func file(_ transfer: Transfer) -> Result<UploadFile, TransferFailure> {
    let digest = transfer.request.digest.flatMap { DigestAlgorithm(rawValue: $0) }
    do throws(UploadFileError) {
      let file = try UploadFile(path: transfer.request.path, digest: digest)
      guard "\(file.version)" == transfer.version else {
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

  /// Makes the stream. It begins when it is started.
  static func streamer(_ transfer: Transfer, _ file: UploadFile, _ session: UploadSession) -> LiveStreamer {
    LiveStreamer(file, configuration: configuration(transfer), session: session)
  }

  static func configuration(_ transfer: Transfer) -> LiveStreamConfiguration {
    let asked = transfer.request
    var request = UploadRequest(url: asked.url)
    request.method = asked.method
    request.fields = asked.fields.map { line in
      let parts = line.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
      return HTTPResponse.Field(
        name: String(parts[0]), value: parts.count > 1 ? String(parts[1].drop { $0 == " " }) : "")
    }
    request.bearerToken = asked.token
    (request.netrcFile, request.proxy, request.unixSocket) = (asked.netrcFile, asked.proxy, asked.unixSocket)
    request.certificateAuthorities = asked.certificateAuthorities
    (request.clientCertificate, request.clientKey) = (asked.clientCertificate, asked.clientKey)
    request.addressFamily = asked.addressFamily == 4 ? .ipv4 : asked.addressFamily == 6 ? .ipv6 : .any
    if asked.usesHTTP1 { request.httpVersion = .http1 }
    func duration(_ milliseconds: Int64?) -> Duration? { milliseconds.map { .milliseconds(max(1, $0)) } }
    request.limits.connect = duration(asked.connectLimit) ?? request.limits.connect
    request.limits.unacknowledged = duration(asked.stallLimit) ?? request.limits.unacknowledged
    request.limits.response = duration(asked.responseLimit) ?? request.limits.response
    request.responseBodyLimit = responseBodyLimit
    // As much as libcurl takes at once: for throughput, system calls are what counts.
    request.uploadBufferSize = 512 << 10
    var configuration = LiveStreamConfiguration(request: request)
    configuration.mayUsePOST = asked.mayUsePOST
    configuration.resumable = .init(rawValue: asked.resumable) ?? .auto
    configuration.keepsOrigin = asked.keepsOrigin
    configuration.digest = asked.digest.flatMap { DigestAlgorithm(rawValue: $0) }
    configuration.rollOver.after = duration(asked.rollOverAfter) ?? configuration.rollOver.after
    configuration.rollOver.size = asked.rollOverSize ?? .max
    configuration.retry.maximumCeiling = duration(asked.longestPause) ?? longestPause
    configuration.retry.giveUpOnRefusalAfter = asked.giveUpOnRefusalAfter.map { .milliseconds(max(0, $0)) }
    if let path = asked.tokenFile { configuration.bearerToken = { token(inFile: path) } }
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

  /// What an event of the stream means to the queue; nil for nothing.
  static func news(_ event: LiveStreamEvent, of transfer: Transfer) -> UploadNews? {
    switch event {
    case .upload(.created(let data)): return .created(data)
    case .acknowledged(let offset): return .acknowledged(offset)
    case .dropout(let dropout), .attemptFailed(let dropout): return .trouble("\(dropout.cause)")
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
      // The only source is the file.
      let cause = error.kind == .source ? "fileChanged" : error.kind.rawValue
      result = TransferResult(.failed, cause: cause, message: error.description)
      result.byteCount = summary.progress.acknowledged
    } else {
      result = TransferResult(.completed)
      result.byteCount = transfer.size
      result.isVerified = summary.verified == transfer.size
    }
    if let response = summary.response {
      result.status = response.status
      result.fields = response.fields.map { "\($0.name): \($0.value)" }
      result.body = response.body
    }
    return summary.error == nil ? .completed(result) : .failed(result)
  }

  /// Nil while it has none that could be sent: it may just be being written.
  private static func token(inFile path: String) -> String? {
    guard var bytes = try? PrivateFile.contents(of: path, limit: 16 * 1024)[...] else { return nil }
    while let last = bytes.last, [0x0A, 0x0D, 0x20].contains(last) { bytes.removeLast() }
    let token = String(decoding: bytes, as: UTF8.self)
    return UploadRequest.canSend(token: token) ? token : nil
  }
}

/// Why a transfer cannot run, or not any more.
package struct TransferFailure: Error, Equatable, Sendable {
  package var cause: String
  package var message: String
  /// Whether it may succeed later without anybody's doing.
  package var isTemporary = false

  package init(cause: String, message: String) { (self.cause, self.message) = (cause, message) }

  init(_ error: UploadFileError, path: String) {
    let reason =
      switch error {
      case .unreadable(let error): error.reason
      case .directory: "it is a directory"
      case .notRegular: "it is not a regular file"
      case .unknownSize: "it does not know its size"
      case .changed(let change): "it changed while it was read: \(change)"
      }
    if case .changed = error { cause = "fileChanged" } else { cause = "fileUnreadable" }
    message = "cannot upload \(path): \(reason)"
    if case .unreadable(let error) = error {
      // This machine's trouble, or that of a disk or a file server, and not the file's.
      isTemporary = [EMFILE, ENFILE, ENOMEM, ENOBUFS, EIO, ESTALE, EAGAIN, ETIMEDOUT].contains(error.code)
    }
  }
}
