// One download of the agent: its part, its state after a kill, and its events for the queue.

internal import Downloads
internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import TransferClient
internal import UploadClient

enum RunningDownload {
  /// How a download begins.
  enum Beginning: Sendable {
    /// From the first byte, or from the end of the part.
    case download(DownloadResumeData?)
    /// An agent was killed after the file had received its name, so it is complete.
    case complete(byteCount: UInt64)
  }

  /// How long parts that no transfer needs are kept, in seconds.
  private static let keptTime: Int64 = 7 * 86_400

  // MARK: Files

  /// The path of an incomplete download: beside its file, or among the agent's own files.
  ///
  /// - Parameter directory: the directory of the agent's own files.
  /// - Returns: a path that no other program knows, or why the download cannot begin.
  static func part(_ request: TransferRequest, directory: String) -> Result<String, TransferFailure> {
    if let text = request.resumeData {
      guard let checkpoint = DownloadCheckpoint(text), checkpoint.found != nil else {
        return .failure(
          TransferFailure(
            cause: "fileChanged", message: "the part of the download is missing, or has changed. Download it again."))
      }
      return .success(checkpoint.data.path)
    }
    let name = "/.sluice-\(LiveStreamConfiguration.randomStreamID()).part"
    if request.path.isEmpty {
      do throws(AgentError) {
        try AgentLocation.makePrivateDirectory(directory)
      } catch {
        return .failure(TransferFailure(cause: "file", message: "cannot make \(directory): \(error)"))
      }
      return .success(directory + name)
    }
    if let failure = obstacle(request) { return .failure(failure) }
    return .success(request.path[..<(request.path.lastIndex(of: "/") ?? request.path.startIndex)] + name)
  }

  /// Why the file cannot receive its name; nil if no obstacle is known.
  private static func obstacle(_ request: TransferRequest) -> TransferFailure? {
    var status = stat()
    guard !request.isKept, lstat(request.path, &status) == 0 else { return nil }
    if !request.replaces {
      return TransferFailure(cause: "exists", message: "\(request.path) already exists. Choose another name.")
    }
    guard status.st_mode & S_IFMT != S_IFREG else { return nil }
    return TransferFailure(
      cause: "exists", message: "cannot replace \(request.path): it is not a regular file. Choose another name.")
  }

  /// Checks what earlier runs have left, which may take a while.
  static func beginning(_ transfer: Transfer) -> Result<Beginning, TransferFailure> {
    let (request, checkpoint) = (transfer.request, transfer.resumeData.flatMap { DownloadCheckpoint($0) })
    if let checkpoint, !request.isKept, isComplete(checkpoint, request.path) {
      // A complete part receives the name and keeps its identity. It may have both names.
      if checkpoint.isFile(checkpoint.data.path) { unlink(checkpoint.data.path) }
      var status = stat()
      lstat(request.path, &status)
      return .success(.complete(byteCount: UInt64(clamping: status.st_size)))
    }
    if let failure = obstacle(request) { return .failure(failure) }
    // A program may submit the part of an earlier download.
    let known = transfer.knownPart.flatMap { DownloadCheckpoint($0) }
    if let data = known?.found { return .success(.download(data)) }
    var status = stat()
    if let known, request.resumeData != nil, known.isFile(known.data.path), lstat(known.data.path, &status) == 0,
      status.st_nlink > 1
    {
      return .failure(
        TransferFailure(
          cause: "fileChanged", message: "the part of the download has a second hard link. Download it again."))
    }
    remove(transfer)
    return .success(.download(nil))
  }

  /// Whether the part of a download has become the file at a path.
  private static func isComplete(_ checkpoint: DownloadCheckpoint, _ path: String) -> Bool {
    var status = stat()
    guard checkpoint.isFile(path), lstat(path, &status) == 0 else { return false }
    // Inodes are reused. Without a creation time, only the size distinguishes one file from the next.
    return checkpoint.data.birth != nil
      || checkpoint.data.length ?? UInt64(clamping: status.st_size)
        == UInt64(clamping: status.st_size)
  }

  /// Removes the part. A path that the program has named may be another file by now, which is kept.
  static func remove(_ transfer: Transfer) {
    guard let part = transfer.request.part else { return }
    let known = transfer.knownPart.flatMap { DownloadCheckpoint($0) }
    if transfer.request.resumeData == nil || known?.isFile(part) == true { unlink(part) }
  }

  /// Removes files that no transfer needs, such as parts that were handed to programs and never continued.
  ///
  /// - Parameter parts: the paths that transfers need.
  static func sweep(_ directory: String, keeping parts: Set<String>) {
    guard let entries = opendir(directory) else { return }
    defer { closedir(entries) }
    let now = WallClock.now.seconds
    while let entry = readdir(entries) {
      let name = withUnsafeBytes(of: entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      let path = "\(directory)/\(name)"
      var status = stat()
      guard name.hasPrefix(".sluice-"), !parts.contains(path), lstat(path, &status) == 0,
        status.st_mode & S_IFMT == S_IFREG, Int64(status.st_mtim.tv_sec).addingSaturated(keptTime) < now
      else { continue }
      removeUnused(path)
    }
  }

  /// Removes a file, unless a download uses it. Its age does not show that, because the wall clock may have been set.
  private static func removeUnused(_ path: String) {
    let file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    // Without a descriptor, this is unknown. The next sweep finds the file again.
    guard file >= 0 else { return }
    defer { close(file) }
    // A running download has a lock on its part, in whichever process.
    if flock(file, LOCK_EX | LOCK_NB) != 0, errno == EWOULDBLOCK { return }
    unlink(path)
  }

  // MARK: Running

  /// - Parameter record: stores a checkpoint before it returns. Returns false if it cannot.
  static func configuration(
    _ transfer: Transfer, _ data: DownloadResumeData?, record: @escaping @Sendable (DownloadCheckpoint) -> Bool
  ) -> FileDownload.Configuration {
    let asked = transfer.request
    var request = asked.httpRequest
    // The most that libcurl reads at once, because the number of system calls limits the throughput.
    request.receiveBufferSize = 512 << 10
    let part = asked.part ?? ""
    var configuration = FileDownload.Configuration(
      request: request, output: asked.isKept ? .part(part) : .file(asked.path, part: part))
    (configuration.resumeData, configuration.replaces, configuration.permissions) = (
      data, asked.replaces, asked.permissions
    )
    asked.adapt(&configuration.retry)
    if let path = asked.tokenFile {
      configuration.bearerToken = { TransferRequest.token(inFile: path) }
      configuration.request.bearerToken = request.bearerToken ?? TransferRequest.token(inFile: path)
    }
    configuration.record = record
    return configuration
  }

  /// What an event of the download means for the queue.
  static func news(_ event: DownloadEvent, of transfer: Transfer) -> [TransferNews] {
    switch event {
    case .receiving(let offset, let length): [.receiving(offset: offset, size: length), .trouble(nil)]
    case .outage(let attempt), .attemptFailed(let attempt):
      [.trouble("\(attempt.cause)" + (attempt.reason.map { ": \($0)" } ?? ""))]
    case .ended(let summary): [.ended(ending(summary, transfer))]
    default: []
    }
  }

  private static func ending(_ summary: DownloadSummary, _ transfer: Transfer) -> TransferQueue.Ending {
    let data = summary.resumeData.map { DownloadCheckpoint($0).text }
    if summary.error?.kind == .cancelled { return .stopped(resumeData: data) }
    if let error = summary.error, error.kind != .unreachable, let reason = error.systemError, mayPass(reason) {
      return .postponed(error.description)
    }
    var result = TransferResult(summary.error == nil ? .completed : .failed)
    if let error = summary.error {
      (result.cause, result.message) = (error.kind.rawValue, error.description)
      // Nothing is kept of the command's downloads.
      if transfer.request.isKept { result.resumeData = data }
    }
    result.byteCount = summary.progress.written
    result.isVerified = summary.error == nil && summary.verified != nil
    if var response = summary.response {
      if summary.error == nil, response.status == 416 {
        // This is the answer to a request for the bytes after the last one, with its error page. The program has asked
        // for the resource.
        response.status = 206
        response.fields = response.fields.filter { !$0.hasPrefix("content-") }
        response.body = []
      }
      result.add(response)
    }
    return summary.error == nil ? .completed(result) : .failed(result)
  }

  /// Whether the disk may accept the file later: there may be space then, or the part may no longer be in use.
  private static func mayPass(_ error: SystemError) -> Bool {
    error.isTemporary || [ENOSPC, EDQUOT, EBUSY].contains(error.code)
  }
}
