// A file to upload, in its state at the time when it was opened.

public import Digests
public import EventLoops
internal import Glibc
public import UploadClient

/// A regular file, open for reading, whose size is the upload's length.
public final class UploadFile: Sendable {
  /// The path with which the file was opened.
  public let path: String
  /// The version of the file when it was opened. It must not change until the server has the whole file.
  public let version: FileVersion
  /// The digest of the whole file. Nil if none was requested.
  public let digest: Digest?
  private let descriptor: Int32
  /// Nil if the file cannot be watched.
  private let writes: FileWrites?

  /// The size in bytes when the file was opened.
  public var size: UInt64 { version.size }

  /// A file of at most this size is read to check its size. The files of procfs and sysfs report a size of 0 or of a
  /// page that differs from their content.
  private static let doubtfulSize: UInt64 = 64 << 10

  /// Opens a file.
  ///
  /// - Parameters:
  ///   - path: an absolute path, or a path relative to the working directory.
  ///   - algorithm: if given, the initializer reads the whole file once for its digest.
  /// - Throws: ``UploadFileError`` when the file cannot be opened, is not a regular file, or has a content of another
  ///   size than it reports.
  public init(path: String, digest algorithm: DigestAlgorithm? = nil) throws(UploadFileError) {
    var status = stat()
    // Comes before opening, which has an effect on some devices.
    guard stat(path, &status) == 0 else { throw .unreadable(.last("stat \(path)")) }
    if let error = UploadFileError(typeOf: status) { throw error }
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try retryingInterrupts("open \(path)") { open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) }
    } catch { throw .unreadable(error) }
    do throws(UploadFileError) {
      // Comes before its version is read, so that later writes are noticed.
      let writes = FileWrites(of: descriptor)
      guard fstat(descriptor, &status) == 0 else { throw .unreadable(.last("fstat \(path)")) }
      if let error = UploadFileError(typeOf: status) { throw error }
      version = FileVersion(status)
      let count: UInt64
      do throws(SystemError) {
        count = try Self.sizeOfContent(descriptor, path, version)
      } catch { throw .unreadable(error) }
      digest = try algorithm.map { (algorithm) throws(UploadFileError) in
        try Self.digest(algorithm, of: descriptor, path)
      }
      guard fstat(descriptor, &status) == 0 else { throw .unreadable(.last("fstat \(path)")) }
      if let change = version.change(to: FileVersion(status), wasWritten: { writes?.any }) {
        throw .changed(change)
      }
      guard count == version.size else { throw .unknownSize }
      (self.path, self.descriptor, self.writes) = (path, descriptor, writes)
    } catch {
      close(descriptor)
      throw error
    }
  }

  /// The number of bytes in a small file. For other files, the reported size.
  private static func sizeOfContent(
    _ descriptor: Int32, _ path: String, _ version: FileVersion
  ) throws(SystemError) -> UInt64 {
    guard version.size <= doubtfulSize else { return version.size }
    // One byte more than expected.
    var buffer = [UInt8](repeating: 0, count: Int(version.size) + 1)
    var count = 0
    while count < buffer.count {
      let more = try retryingInterrupts("read \(path)") {
        buffer.withUnsafeMutableBytes { bytes in
          let rest = UnsafeMutableRawBufferPointer(rebasing: bytes[count...])
          return pread(descriptor, rest.baseAddress, rest.count, off_t(count))
        }
      }
      if more == 0 { break }
      count += more
    }
    return UInt64(count)
  }

  private static func digest(
    _ algorithm: DigestAlgorithm, of descriptor: Int32, _ path: String
  ) throws(UploadFileError) -> Digest {
    var running = RunningDigest(algorithm)
    var buffer = [UInt8](repeating: 0, count: 1 << 20)
    var offset = 0
    while true {
      let count: Int
      do throws(SystemError) {
        count = try retryingInterrupts("read \(path)") {
          buffer.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress, $0.count, off_t(offset)) }
        }
      } catch { throw .unreadable(error) }
      if count == 0 { return running.value() }
      running.update(buffer.span.extracting(first: count).bytes)
      offset += count
    }
  }

  deinit { close(descriptor) }

  package func body(_ range: Range<UInt64>) throws(SystemError) -> UploadBody {
    .file(try FileBody(descriptor: descriptor, range: range, name: path, version: version, writes: writes))
  }

  /// The change of the file since it was opened, in words. Nil if there is none.
  var change: String? {
    var status = stat()
    var isUnlinked = false
    if fstat(descriptor, &status) == 0 {
      let now = FileVersion(status)
      if let change = change(to: now) { return change }
      isUnlinked = now.isUnlinked
    }
    if stat(path, &status) == 0 { return change(to: FileVersion(status)) }
    // Other errors, such as those of a file server, do not state whether the file is still there.
    guard errno == ENOENT || errno == ENOTDIR else { return nil }
    // Removing the file does not change it. All of it can still be sent.
    return isUnlinked ? nil : "it was moved"
  }

  private func change(to now: FileVersion) -> String? {
    version.change(to: now) { writes?.any }
  }
}

/// The reason why a file cannot be uploaded.
public enum UploadFileError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The file does not exist, or cannot be read.
  case unreadable(SystemError)
  /// The path is a directory.
  case directory
  /// The path is a pipe, a device or a socket. It has no size, and its bytes can be read only once.
  case notRegular
  /// The file's content and its reported size differ, as in procfs and sysfs.
  case unknownSize
  /// The file changed while it was read for its digest, or since its upload was interrupted, with details in words.
  case changed(String)

  /// The reason, in words. It contains the path only if the system refuses the file, or in the error of an upload.
  public var description: String {
    switch self {
    case .unreadable(let error): error.description
    case .directory: "it is a directory"
    case .notRegular: "it is not a regular file, so it can be read only once. Stream its content instead."
    case .unknownSize: "its content and its reported size differ. Stream its content instead."
    case .changed(let change): change
    }
  }

  init?(typeOf status: stat) {
    switch status.st_mode & S_IFMT {
    case S_IFREG: return nil
    case S_IFDIR: self = .directory
    default: self = .notRegular
    }
  }
}

/// A file as the content of a stream. All of it is available, as often as it is needed. Owned by the network loop's
/// thread.
final class FileContent: StreamContent {
  private let file: UploadFile

  init(_ file: UploadFile) { self.file = file }

  var capacity: Int { 0 }
  var oldest: UInt64 { 0 }
  var head: UInt64 { file.size }
  var isFinished: Bool { true }

  func openBody(_ header: [UInt8], from offset: UInt64, maximum: UInt64?) throws(SystemError) -> UploadBody {
    let rest = file.size - min(offset, file.size)
    return try file.body(offset..<(offset + min(maximum ?? .max, rest)))
  }

  var fault: LiveStreamError? {
    file.change.map {
      var error = LiveStreamError(
        .source, "\(file.path) changed while it was being sent: \($0). Upload it again.")
      error.isFileChanged = true
      return error
    }
  }

  func endBody(atLeast end: UInt64) -> Bool { false }
  func dropBody() {}
  func release(upTo offset: UInt64) {}
  func requestWakeUp(at offset: UInt64) -> Bool { false }
  func restartDigest(at offset: UInt64) {}
  func digest(since start: UInt64) -> (value: Digest, upTo: UInt64)? {
    start == 0 ? file.digest.map { ($0, file.size) } : nil
  }
}
