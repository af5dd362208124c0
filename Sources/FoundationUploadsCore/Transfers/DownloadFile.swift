// The file of a download task: the effect of a response (`DownloadStateMachine`), and the bytes (`PartialFile`).

internal import DiskFiles
internal import Downloads
internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import Glibc
internal import HTTPMessages
internal import UploadClient

/// The file of a download. Owned by the network thread, and at the end by the delegate's thread; unchecked for that
/// reason. A worker's thread writes it, so that a slow disk does not delay the session's other tasks.
final class DownloadFile: @unchecked Sendable {
  private(set) var url: URL
  private let worker: BackgroundWorker
  private var file: PartialFile?
  private var machine = DownloadStateMachine()
  /// The download that the next response must continue; nil after that response.
  private var wanted: DownloadRecord?
  /// Whether the response is the resource. Any other response also has a file, but it cannot be continued.
  private var isResource = false
  private var acceptsRanges = false
  /// Whether more bytes arrived than announced, so that none can be trusted.
  private var isExcessive = false
  /// Where the response's body begins in the file.
  private(set) var start: Int64 = 0
  /// The reason why no file can be written.
  private var openingProblem: URLError?
  /// Whether the network thread was notified and will check the worker's progress.
  private let isTold = Lock(false)

  /// Why the file is invalid.
  var problem: URLError? {
    openingProblem ?? file?.error.map { URLError(.cannotWriteToFile, url, "\(url.path): \($0.reason)") }
  }
  /// Returns how many bytes of the file belong to the download. Any thread, even after the task has released the file.
  var byteCount: @Sendable () -> Int64 { { [file] in Int64(clamping: file?.written ?? 0) } }
  /// Whether all received bytes are written, or cannot be.
  var isWritten: Bool { file?.isIdle ?? true }
  /// Whether the response continues existing bytes.
  var isResumed: Bool { start > 0 }
  /// Whether everything that the server has announced was received.
  var isWhole: Bool { !isResource || !isExcessive && machine.ended(isWhole: true) == .complete }
  /// Whether the file belongs to this task, which removes it if it is not wanted.
  var isOwned: Bool { file != nil }

  init(_ worker: BackgroundWorker) { (url, self.worker) = (Self.freshURL, worker) }

  private static var freshURL: URL {
    FileManager.default.temporaryDirectory.appendingPathComponent("sluice-\(UUID().uuidString).part")
  }

  /// Continues with the file of `record`, if it still exists.
  ///
  /// The record has left this process, so the file at its path must be verified (`PartialFile`). Another file is a
  /// ``problem``, and stays unchanged.
  init(resuming record: DownloadRecord, _ worker: BackgroundWorker) {
    (url, self.worker) = (URL(fileURLWithPath: record.path), worker)
    do throws(SystemError) {
      file = try PartialFile(resuming: record.resumeData, worker)
      machine = DownloadStateMachine(resuming: record.resumeData)
      if machine.isResumable { wanted = record }
    } catch {
      if error.code == ENOENT || error.code == ENOTDIR {
        url = Self.freshURL
      } else {
        openingProblem = URLError(.cannotOpenFile, url, "cannot continue \(record.path): \(error.reason)")
      }
    }
  }

  /// Requests the rest, on condition that the resource has not changed (RFC 9110, section 13.1.5).
  func addRange(to request: inout UploadRequest) {
    if wanted != nil { request.fields.append(contentsOf: machine.begin()) }
  }

  /// The response begins.
  ///
  /// - Parameter hasContent: false in answer to `HEAD`.
  /// - Returns: false if it does not match the request, so that everything must be requested.
  func begin(_ response: HTTPResponse, hasContent: Bool) -> Bool {
    let isResumption = wanted != nil
    guard hasContent, response.status == 200 || isResumption && [206, 412, 416].contains(response.status) else {
      return beginOther()
    }
    switch machine.answered(response) {
    case .content(let offset, _):
      // A part that ends before the resource would need a request of its own.
      guard offset == 0 || machine.reachesEnd else { return false }
      (wanted, isResource, start) = (nil, true, Int64(clamping: offset))
      acceptsRanges = offset > 0 || response["Accept-Ranges"]?.lowercased() == "bytes"
      if offset == 0 { file?.truncate(to: 0) }
      makeFile()
      return true
    // An encoded resource, for example. It is delivered unchanged, and cannot be continued.
    case .broken where !isResumption: return beginOther()
    case .startOver, .complete, .broken, .fail: return false
    }
  }

  /// A response other than the resource does not replace the existing part.
  private func beginOther() -> Bool {
    if wanted != nil {
      close()
      url = Self.freshURL
    }
    (wanted, isResource, start) = (nil, false, 0)
    makeFile()
    return true
  }

  private func makeFile() {
    guard file == nil else { return }
    do throws(SystemError) {
      file = try PartialFile(making: url.path, mode: 0o600, worker)
    } catch {
      openingProblem = URLError(.cannotCreateFile, url, "\(url.path): \(error.reason)")
    }
  }

  /// Writes the next bytes soon.
  ///
  /// - Parameters:
  ///   - news: called on the worker's thread when some have been written and the last news was taken.
  ///   - taken: called with these bytes, on the worker's thread, when they are not needed any more.
  func write(_ bytes: [UInt8], _ news: @escaping @Sendable () -> Void, taken: @escaping @Sendable ([UInt8]) -> Void) {
    guard let file else { return taken(bytes) }
    if isResource, !machine.received(bytes.count) { isExcessive = true }
    file.write(bytes) { [self] bytes, _ in
      let tells = isTold.withLock { told in
        defer { told = true }
        return !told
      }
      if tells { news() }
      taken(bytes)
    }
  }

  /// Calls `work` when all received bytes are written, or cannot be: at once, or on the worker's thread.
  func whenWritten(_ work: @escaping @Sendable () -> Void) {
    if let file { file.whenWritten(work) } else { work() }
  }

  /// Calls `work` when the written bytes of a part are on the disk, or cannot be: at once, or on the worker's thread.
  ///
  /// Resume data that counted other bytes would continue behind zeros after a power cut.
  func whenSynchronized(_ work: @escaping @Sendable () -> Void) {
    guard let file, isPart else { return work() }
    worker.execute {
      // The file reports a failure itself.
      try? file.synchronize()
      work()
    }
  }

  /// The news has arrived, so the next is reported again.
  func takeNews() { isTold.withLock { $0 = false } }

  /// Releases the file for another task, after all pending bytes are written.
  func close() {
    guard let file = file.take() else { return }
    file.whenWritten { file.unlock() }
  }

  /// Whether a later request can continue the file.
  private var isPart: Bool { wanted == nil && isResource && acceptsRanges && problem == nil }

  /// The data with which a later task continues, once everything is written and synced; nil if there is nothing to
  /// continue, or the server cannot.
  func record(of request: URLRequest, isAtOtherOrigin: Bool) -> DownloadRecord? {
    // The resumed task needs the lock, and the worker may keep the file open for another moment.
    file?.unlock()
    if let wanted { return wanted }
    guard let file, isPart, request.httpMethod ?? "GET" == "GET" else { return nil }
    machine.lost(from: file.written)
    guard machine.isResumable, let validator = machine.validator else { return nil }
    return DownloadRecord(
      request, isAtOtherOrigin: isAtOtherOrigin,
      DownloadResumeData(
        path: file.path, inode: file.inode, birth: file.birth, byteCount: machine.count, validator: validator,
        length: machine.length, digest: machine.digest))
  }
}
