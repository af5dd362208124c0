// The file of a download task: the effect of a response (`DownloadStateMachine`), and the bytes (`PartialFile`).

internal import DiskFiles
internal import Downloads
internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import Glibc
internal import HTTPMessages
internal import UploadClient

/// The file that a download goes into. Owned by the network thread, and at the end by the delegate's; unchecked for
/// that reason. It is written on a worker's thread: a slow disk must not hold up the other tasks of the session.
final class DownloadFile: @unchecked Sendable {
  private(set) var url: URL
  private let worker: BackgroundWorker
  private var file: PartialFile?
  private var machine = DownloadStateMachine()
  /// What the next response is to continue; nil once there was one.
  private var wanted: DownloadRecord?
  /// Whether the response is the resource: any other has a file, too, and nothing continues it.
  private var isResource = false
  private var acceptsRanges = false
  /// Whether more has come than was announced: none of it can be trusted.
  private var isExcessive = false
  /// Where the response's body begins in the file.
  private(set) var start: Int64 = 0
  /// The reason why no file can be written.
  private var openingProblem: URLError?
  /// Whether the network thread is about to look at what the worker has done.
  private let isTold = Lock(false)

  /// Why the file is not what it should be.
  var problem: URLError? {
    openingProblem ?? file?.error.map { URLError(.cannotWriteToFile, url, "\(url.path): \($0.reason)") }
  }
  /// Says how many bytes of the file are part of the download, on any thread, also when the task has given it up.
  var byteCount: @Sendable () -> Int64 { { [file] in Int64(clamping: file?.written ?? 0) } }
  /// Whether all that has come is written, or cannot be.
  var isWritten: Bool { file?.isIdle ?? true }
  /// Whether the response continues what was there.
  var isResumed: Bool { start > 0 }
  /// Whether everything has come that the server has announced.
  var isWhole: Bool { !isResource || !isExcessive && machine.ended(isWhole: true) == .complete }
  /// Whether the file is this task's, to be removed where nobody wants it.
  var isOwned: Bool { file != nil }

  init(_ worker: BackgroundWorker) { (url, self.worker) = (Self.freshURL, worker) }

  private static var freshURL: URL {
    FileManager.default.temporaryDirectory.appendingPathComponent("sluice-\(UUID().uuidString).part")
  }

  /// Continues with the file of `record`, if it is still there.
  ///
  /// The record has been out of this process, and what is at its path is not believed (`PartialFile`). Another file is a
  /// ``problem``, and stays as it is.
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
        openingProblem = URLError(.cannotOpenFile, url, "\(record.path) is not continued: \(error.reason)")
      }
    }
  }

  /// Asks for the rest, if the resource has not changed (RFC 9110, section 13.1.5).
  func addRange(to request: inout UploadRequest) {
    if wanted != nil { request.fields += machine.begin() }
  }

  /// The response begins.
  ///
  /// - Parameter hasContent: false in answer to `HEAD`.
  /// - Returns: false if it is not what was asked for: then everything is to be asked for.
  func begin(_ response: HTTPResponse, hasContent: Bool) -> Bool {
    let isResumption = wanted != nil
    guard hasContent, response.status == 200 || isResumption && [206, 412, 416].contains(response.status) else {
      return beginOther()
    }
    switch machine.answered(response) {
    case .content(let offset, _):
      // A part that ends before the resource does would need a request of its own.
      guard offset == 0 || machine.reachesEnd else { return false }
      (wanted, isResource, start) = (nil, true, Int64(clamping: offset))
      acceptsRanges = offset > 0 || response["Accept-Ranges"]?.lowercased() == "bytes"
      if offset == 0 { file?.truncate(to: 0) }
      makeFile()
      return true
    // An encoded resource, for example: it comes as it is, and nothing continues it.
    case .broken where !isResumption: return beginOther()
    case .startOver, .complete, .broken: return false
    }
  }

  /// What is not the resource does not take the place of what there is of it.
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

  /// Writes the next bytes, soon.
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

  /// Calls `work` when all that has come is written, or cannot be: at once, or on the worker's thread.
  func whenWritten(_ work: @escaping @Sendable () -> Void) {
    if let file { file.whenWritten(work) } else { work() }
  }

  /// The news has arrived: the next is told again.
  func takeNews() { isTold.withLock { $0 = false } }

  /// Lets another task have the file. What is not written yet, is before.
  func close() {
    guard let file = file.take() else { return }
    file.whenWritten { file.unlock() }
  }

  /// What a later task continues with, once all is written; nil where there is nothing to continue, or the server
  /// cannot.
  func record(of request: URLRequest, isAtOtherOrigin: Bool) -> DownloadRecord? {
    // The file is for whoever resumes, and the worker may hold it open for another moment.
    file?.unlock()
    if let wanted { return wanted }
    guard let file, isResource, acceptsRanges, problem == nil, request.httpMethod ?? "GET" == "GET" else { return nil }
    machine.lost(from: file.written)
    guard machine.isResumable, let validator = machine.validator else { return nil }
    return DownloadRecord(
      request, isAtOtherOrigin: isAtOtherOrigin,
      DownloadResumeData(
        path: file.path, inode: file.inode, birth: file.birth, byteCount: machine.count, validator: validator,
        length: machine.length, digest: machine.digest))
  }
}
