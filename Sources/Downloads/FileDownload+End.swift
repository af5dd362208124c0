// The end of a download: verified, on disk and with its final name, or kept for later.

internal import Digests
internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import LiveStreaming
internal import UploadClient

extension FileDownload {
  /// All bytes have arrived.
  func complete() {
    guard let file else { return }
    beginEnding()
    let (response, digest, start, end) = (response, machine.digest, contentStart, machine.count)
    file.whenWritten { [self] in
      // After the pending work on the file.
      worker.execute { [self] in
        let result = Self.seal(file, configuration, response, digest, start..<end)
        onLoop { $0.sealed(result) }
      }
    }
  }

  /// On the worker's thread.
  private static func seal(
    _ file: PartialFile, _ configuration: Configuration, _ response: HTTPResponse?, _ digest: String?,
    _ content: Range<UInt64>
  ) -> Result<String?, DownloadError> {
    do throws(SystemError) {
      if let error = file.error { throw error }
      let verified = try verify(file, response, digest, content)
      if case .failure = verified { return verified }
      try file.synchronize()
      if case .file(let path, _) = configuration.output { try file.rename(to: path, replaces: configuration.replaces) }
      return verified
    } catch {
      // The disk has all bytes. Nothing can be continued, and more space would not help.
      if file.isRenamed { return .failure(DownloadError(.file, error.description)) }
      // A later process continues with these. If the disk rejects them, that process finds fewer.
      if file.written > 0 { try? file.synchronize() }
      return .failure(error.code == ECANCELED ? DownloadError(.cancelled, "cancelled") : fileError(error))
    }
  }

  /// Compares the bytes with all of the server's digests: of the whole representation, from any response, and of the
  /// last response's content. Each may precede the content or follow it.
  ///
  /// - Returns: the name of the strongest compared algorithm; nil if the server has sent no digest.
  private static func verify(
    _ file: PartialFile, _ response: HTTPResponse?, _ digest: String?, _ content: Range<UInt64>
  ) throws(SystemError) -> Result<String?, DownloadError> {
    var compared: Set<DigestAlgorithm> = []
    // The content of a 416 is not the file's.
    let ofContent = response?.status == 416 ? nil : response?[DigestField.content]
    func trailer(_ name: String) -> String? { response?.trailers.first(name) }
    for (field, text, range) in [
      (DigestField.representation, digest, 0..<content.upperBound), (DigestField.content, ofContent, content),
      (DigestField.representation, trailer(DigestField.representation), 0..<content.upperBound),
      (DigestField.content, trailer(DigestField.content), content),
    ] {
      for digest in text.map(Self.digests) ?? [] {
        guard let found = try file.digest(digest.algorithm, of: range) else { continue }
        guard found.isEqual(to: digest) else {
          let name = "\(field), \(digest.algorithm.name)"
          return .failure(
            DownloadError(.corrupt, "the bytes do not match the server's digest (\(name)). Download the file again."))
        }
        compared.insert(digest.algorithm)
      }
    }
    // The algorithms are in ascending order of their strength.
    return .success(DigestAlgorithm.allCases.last(where: { compared.contains($0) })?.name)
  }

  private func sealed(_ result: Result<String?, DownloadError>) {
    switch result {
    case .success(let verified): end(nil, verified: verified, resumeData: nil)
    case .failure(var error):
      if error.kind == .corrupt, file != nil {
        let count = machine.count
        switch machine.mismatched() {
        case .wrong: break
        case .mayLackRest: return requestRest()
        case .cannotContinue(let reason): error.description = Self.cutWords(reason)
        case .changes(let count): error.description = Self.changeWords(count)
        case .startOver(let reason): return startOver(reason, count)
        }
      }
      let isWhole = file.map { $0.written >= machine.count } ?? false
      if let file { machine.lost(from: file.written) }
      let data = error.kind == .corrupt ? nil : resumeData
      // Nothing can continue bytes that are wrong, and without bytes there is nothing to continue.
      let isUseless = data == nil && (!isWhole || error.kind == .cancelled)
      if error.kind == .corrupt || machine.count == 0 || isUseless { file?.remove() }
      end(error, resumeData: data)
    }
  }

  private static let unmatched = "the response states no length, and its bytes do not match the server's digest"

  private static func cutWords(_ reason: DownloadRestart) -> String {
    "\(unmatched), so it was probably cut off. The rest cannot be requested: \(reason). Download the file again."
  }

  private static func changeWords(_ count: Int) -> String {
    "\(count) responses did not match the server's digest, each of another version or with more bytes than the one "
      + "before: the resource may change while it is sent. Download it when it no longer changes."
  }

  /// The response may have been cut off, so the download has not ended.
  private func requestRest() {
    if goesOn() { again(.connectionLost(Self.unmatched), nil) }
  }

  /// The existing bytes are those of an earlier version.
  private func startOver(_ reason: DownloadRestart, _ count: UInt64) {
    if goesOn(), discard(reason, count) { send(sent) }
  }

  /// Takes back the end. Returns false if the download was cancelled during the verification.
  private func goesOn() -> Bool {
    isEnding = false
    guard file?.hasAbandonedDigests == false else {
      fail(DownloadError(.cancelled, "cancelled"))
      return false
    }
    if let interval = configuration.progressInterval { tellProgress(every: interval) }
    return true
  }

  /// Ends with an error, and keeps the part if it can be continued.
  func fail(_ error: DownloadError) {
    guard !isEnding else {
      // All bytes have arrived, and the reader of a pipe may never read them.
      if let file, file.isStream, !file.isIdle { end(error, resumeData: nil) }
      if error.kind == .cancelled { file?.abandonDigests() }
      return
    }
    beginEnding()
    guard let file else {
      // After the opening of the file, which may be under way.
      return worker.execute { [self] in onLoop { $0.end(error, resumeData: $0.configuration.resumeData) } }
    }
    if file.isStream {
      // The reader may never read the waiting bytes.
      return end(error, resumeData: nil)
    }
    file.whenWritten { [self] in
      worker.execute { [self] in
        // A later process continues with these. If the disk rejects them, that process finds fewer.
        if file.written > 0 { try? file.synchronize() }
        onLoop { download in
          download.machine.lost(from: file.written)
          let data = download.resumeData
          if data == nil { file.remove() }
          download.end(error, resumeData: data)
        }
      }
    }
  }

  private var resumeData: DownloadResumeData? {
    guard let file, !file.isStream, !file.isRenamed, machine.isResumable, let validator = machine.validator else {
      return nil
    }
    return DownloadResumeData(
      path: file.path, inode: file.inode, birth: file.birth, byteCount: min(machine.count, file.written),
      validator: validator, length: machine.length, digest: machine.digest)
  }

  private func beginEnding() {
    isEnding = true
    stopRequest()
    for timer in [retryTimer, progressTimer] { timer.map { session?.loop.cancel($0) } }
    (retryTimer, progressTimer) = (nil, nil)
  }

  private func end(_ failure: DownloadError?, verified: String? = nil, resumeData: DownloadResumeData?) {
    var error = failure
    // A limit of file sizes is not a lack of space.
    if failure?.isShortage == true, failure?.systemError?.code != EFBIG {
      error?.description += ". Free space, and \(resumeData == nil ? "download it again" : "resume the download")."
    }
    let summary = DownloadSummary(
      error: error, progress: progress, resumeData: resumeData, resumedFrom: min(resumedFrom, progress.written),
      verified: verified,
      response: response)
    // The receiver of the end may continue at once.
    file?.unlock()
    file = nil
    handler(.ended(summary))
    handler = { _ in }
    // The session ends with its last reference.
    leave()
  }
}
