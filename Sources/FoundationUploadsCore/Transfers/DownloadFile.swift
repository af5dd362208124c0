// The file of a download: which one, what it holds, and how the rest of it is asked for.

internal import DiskFiles
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
  /// Locked while it is open.
  private var descriptor: Int32 = -1
  private var inode: UInt64 = 0
  /// Where the response's body begins in it.
  private(set) var start: Int64 = 0
  /// How many bytes of the response have come.
  private var received: Int64 = 0
  private let written = Lock(Written())

  /// What the worker has done.
  private struct Written {
    var byteCount: Int64 = 0
    var problem: URLError?
    /// Whether the network thread is about to look at this.
    var isTold = false
  }

  /// What the rest is asked for with; nil if the server cannot resume.
  private var validator: String?
  /// What to ask the server for; nil to ask for all.
  private var wanted: DownloadRecord?
  /// Whether the response continues what there was.
  private(set) var isResumed = false
  /// Where the part that the server sends ends; nil where it does not say.
  private var end: Int64?
  /// Why there is no file to write.
  private var openingProblem: URLError?

  /// Why the file is not what it should be.
  var problem: URLError? { openingProblem ?? written.withLock { $0.problem } }
  /// How many bytes of the file are part of the download.
  var byteCount: Int64 { start + written.withLock { $0.byteCount } }
  /// Whether all that has come is written, or cannot be.
  var isWritten: Bool { written.withLock { $0.byteCount == received || $0.problem != nil } }

  init() {
    url = Self.freshURL
  }

  private static var freshURL: URL {
    FileManager.default.temporaryDirectory.appendingPathComponent("sluice-\(UUID().uuidString).part")
  }

  /// Continues with the file of `record`, if it is still there.
  ///
  /// The record has been out of this process, and what is at its path is not believed: a file that is not the part of a
  /// download that this user has begun, or that another task has open, is a ``problem``, and stays as it is.
  init(resuming record: DownloadRecord) {
    url = URL(fileURLWithPath: record.path)
    let file = Glibc.open(record.path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    if file < 0, errno == ENOENT || errno == ENOTDIR {
      url = Self.freshURL
      return
    }
    var status = stat()
    guard file >= 0, fstat(file, &status) == 0 else {
      openingProblem = URLError(.cannotOpenFile, url, "\(record.path): \(String(cString: strerror(errno)))")
      if file >= 0 { Glibc.close(file) }
      return
    }
    if let reason = Self.mismatch(status, record) ?? Self.lock(file) {
      openingProblem = URLError(.cannotOpenFile, url, "\(record.path) is not continued: \(reason)")
      Glibc.close(file)
      return
    }
    descriptor = file
    if record.byteCount > 0, Int64(status.st_size) >= record.byteCount { wanted = record }
  }

  /// Why a file is not the one that a record names; nil if it is.
  private static func mismatch(_ status: stat, _ record: DownloadRecord) -> String? {
    if status.st_mode & S_IFMT != S_IFREG { return "it is not a regular file" }
    if status.st_uid != geteuid() { return "it belongs to another user" }
    if status.st_nlink != 1 { return "it has another name, too" }
    // Without the device, which some file systems number anew each time they are mounted.
    if UInt64(status.st_ino) != record.inode { return "another file took its place" }
    return nil
  }

  /// Two tasks that continue one download would write into one file.
  private static func lock(_ file: Int32) -> String? {
    flock(file, LOCK_EX | LOCK_NB) == 0 ? nil : "another task has it open"
  }

  deinit { close() }

  /// Asks for the rest, if the resource has not changed (RFC 9110, section 13.1.5).
  func addRange(to request: inout UploadRequest) {
    guard let wanted else { return }
    request.fields.append(.init(name: "Range", value: "bytes=\(wanted.byteCount)-"))
    request.fields.append(.init(name: "If-Range", value: wanted.validator))
  }

  /// The response begins.
  ///
  /// - Returns: false if it is not what was asked for: then everything is to be asked for.
  func begin(_ response: HTTPResponse, _ source: URL) -> Bool {
    if let wanted {
      self.wanted = nil
      // RFC 9110, section 15.3.7: a part is only what says that it is, of this very range.
      if response.status == 206 {
        guard let range = Self.range(response["Content-Range"]), range.lowerBound == wanted.byteCount,
          // A server that ignores If-Range sends a part of whatever is there now.
          Self.isPart(of: wanted.validator, response)
        else { return false }
        (isResumed, start, validator, end) = (true, wanted.byteCount, wanted.validator, range.upperBound)
        return open(truncatingTo: wanted.byteCount)
      }
      if [412, 416].contains(response.status) { return false }
      // What is not the resource does not take the place of what there is of it.
      if response.status != 200 {
        close()
        url = Self.freshURL
      }
    }
    let canResume = response["Accept-Ranges"]?.lowercased() == "bytes" && response.status == 200
    // A weak validator does not promise the same bytes.
    let tag = response["ETag"].flatMap { $0.hasPrefix("W/") ? nil : $0 }
    validator = canResume ? tag ?? response["Last-Modified"] : nil
    (isResumed, start) = (false, 0)
    return open(truncatingTo: 0)
  }

  /// Whether a part is one of the resource that the rest was asked of, as far as the response says.
  private static func isPart(of validator: String, _ response: HTTPResponse) -> Bool {
    let found = validator.hasPrefix("\"") ? response["ETag"] : response["Last-Modified"]
    return found == nil || found == validator
  }

  /// Whether everything has come that the server has announced.
  var isWhole: Bool { end == nil || byteCount == end }

  /// `bytes 5-9/10` as `5..<10`, if it reaches to the end.
  static func range(_ text: String?) -> Range<Int64>? {
    guard case .part(let range, let total?) = text.flatMap({ ContentRange(parsing: $0) }), range.upperBound == total,
      let start = Int64(exactly: range.lowerBound), let end = Int64(exactly: total)
    else { return nil }
    return start..<end
  }

  private func open(truncatingTo size: Int64) -> Bool {
    if descriptor < 0 {
      descriptor = Glibc.open(url.path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0o600)
      // Nobody else knows the name yet.
      if descriptor >= 0 { _ = Self.lock(descriptor) }
    }
    var status = stat()
    guard descriptor >= 0, ftruncate(descriptor, off_t(size)) == 0, lseek(descriptor, off_t(size), SEEK_SET) == size,
      fstat(descriptor, &status) == 0
    else {
      openingProblem = URLError(.cannotCreateFile, url, "\(url.path): \(String(cString: strerror(errno)))")
      return true
    }
    inode = UInt64(status.st_ino)
    return true
  }

  /// Writes the next bytes, soon.
  ///
  /// - Parameters:
  ///   - news: called on the worker's thread when some have been written and the last news was taken.
  ///   - taken: called on the worker's thread when these bytes are not kept in memory any more.
  func write(
    _ bytes: [UInt8], on worker: BackgroundWorker, _ news: @escaping @Sendable () -> Void,
    taken: @escaping @Sendable () -> Void
  ) {
    received += Int64(bytes.count)
    worker.execute { [self, descriptor] in
      let problem = written.withLock { $0.problem } == nil ? Self.write(bytes, descriptor, url) : nil
      let tells = written.withLock { written in
        if let problem { written.problem = problem }
        if written.problem == nil { written.byteCount += Int64(bytes.count) }
        defer { written.isTold = true }
        return !written.isTold
      }
      if tells { news() }
      taken()
    }
  }

  /// The news has arrived: the next is told again.
  func takeNews() { written.withLock { $0.isTold = false } }

  private static func write(_ bytes: [UInt8], _ descriptor: Int32, _ url: URL) -> URLError? {
    bytes.withUnsafeBytes { bytes in
      var rest = bytes[...]
      while !rest.isEmpty {
        let count = Glibc.write(descriptor, UnsafeRawBufferPointer(rebasing: rest).baseAddress, rest.count)
        if count < 0, errno == EINTR { continue }
        guard count > 0 else {
          return URLError(.cannotWriteToFile, url, "\(url.path): \(String(cString: strerror(errno)))")
        }
        rest = rest.dropFirst(count)
      }
      return nil
    }
  }

  /// Whether the file is this task's, to be removed where nobody wants it.
  var isOwned: Bool { descriptor >= 0 }

  /// Lets another task have the file. What is not written yet, is before.
  func close(_ worker: BackgroundWorker? = nil) {
    let file = descriptor
    guard file >= 0 else { return }
    descriptor = -1
    if let worker, !isWritten { worker.execute { Glibc.close(file) } } else { Glibc.close(file) }
  }

  /// What a later task continues with, once all is written; nil where there is nothing to continue, or the server
  /// cannot.
  func record(of request: URLRequest, isAtOtherOrigin: Bool) -> DownloadRecord? {
    // The file is for whoever resumes, and the worker may hold it open for another moment.
    flock(descriptor, LOCK_UN)
    if let wanted { return wanted }
    guard let validator, byteCount > 0, request.httpMethod ?? "GET" == "GET", problem == nil else { return nil }
    return DownloadRecord(
      request, isAtOtherOrigin: isAtOtherOrigin, path: url.path, inode: inode, byteCount: byteCount,
      validator: validator)
  }
}
