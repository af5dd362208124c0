// A file to be uploaded, as it was when it was opened.

public import Digests
public import EventLoops
internal import Glibc
public import UploadClient

/// A regular file, open for reading, whose size is the upload's length.
public final class UploadFile: Sendable {
  /// The path that the file was opened with.
  public let path: String
  /// The file's state when it was opened. It has to stay the same until the server has all of it.
  public let version: FileVersion
  /// The digest of the whole file; nil if none was asked for.
  public let digest: Digest?
  private let descriptor: Int32
  /// nil if the file cannot be watched.
  private let writes: FileWrites?

  /// In bytes, when it was opened.
  public var size: UInt64 { version.size }

  /// A file of at most this size is read to find out whether it has as many as its size says: those of procfs and
  /// sysfs do not, and each of their sizes is 0 or a page's.
  private static let doubtfulSize: UInt64 = 64 << 10

  /// Opens a file.
  ///
  /// - Parameters:
  ///   - path: its path, absolute or relative to the working directory.
  ///   - algorithm: if given, the whole file is read once, here and now, for its digest.
  /// - Throws: ``UploadFileError`` when the file cannot be opened, is not a regular file, or has another size than it
  ///   claims.
  public init(path: String, digest algorithm: DigestAlgorithm? = nil) throws(UploadFileError) {
    var status = stat()
    // Before it is opened, which has an effect on some devices.
    guard stat(path, &status) == 0 else { throw .unreadable(.last("stat \(path)")) }
    if let error = UploadFileError(typeOf: status) { throw error }
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try retryingInterrupts("open \(path)") { open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) }
    } catch { throw .unreadable(error) }
    do throws(UploadFileError) {
      // Before its version is known: what is written later is seen.
      let writes = FileWrites(of: descriptor)
      guard fstat(descriptor, &status) == 0 else { throw .unreadable(.last("fstat \(path)")) }
      if let error = UploadFileError(typeOf: status) { throw error }
      version = FileVersion(status)
      let count: UInt64
      do throws(SystemError) {
        count = try Self.sizeOfContent(descriptor, path, version)
        digest = try algorithm.map { (algorithm) throws(SystemError) in try Self.digest(algorithm, of: descriptor, path)
        }
      } catch { throw .unreadable(error) }
      guard fstat(descriptor, &status) == 0 else { throw .unreadable(.last("fstat \(path)")) }
      if let change = version.change(to: FileVersion(status), wasWritten: { writes?.any ?? true }) {
        throw .changed(change)
      }
      guard count == version.size else { throw .unknownSize }
      (self.path, self.descriptor, self.writes) = (path, descriptor, writes)
    } catch {
      close(descriptor)
      throw error
    }
  }

  /// How many bytes a small file has; of others, what their size says.
  private static func sizeOfContent(
    _ descriptor: Int32, _ path: String, _ version: FileVersion
  ) throws(SystemError) -> UInt64 {
    guard version.size <= doubtfulSize else { return version.size }
    // One more than there should be.
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
  ) throws(SystemError) -> Digest {
    do {
      var running = try RunningDigest(algorithm)
      var buffer = [UInt8](repeating: 0, count: 1 << 20)
      var offset = 0
      while true {
        let count = try retryingInterrupts("read \(path)") {
          buffer.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress, $0.count, off_t(offset)) }
        }
        if count == 0 { return try running.value() }
        running.update(buffer.span.extracting(first: count).bytes)
        offset += count
      }
    } catch let error as SystemError {
      throw error
    } catch {
      throw SystemError(operation: "\(error)", code: ENOTSUP)
    }
  }

  deinit { close(descriptor) }

  package func body(_ range: Range<UInt64>) throws(SystemError) -> UploadBody {
    .file(try FileBody(descriptor: descriptor, range: range, name: path, version: version, writes: writes))
  }

  /// How the file has changed since it was opened, in words; nil when it has not.
  var change: String? {
    var status = stat()
    var isUnlinked = false
    if fstat(descriptor, &status) == 0 {
      let now = FileVersion(status)
      if let change = change(to: now) { return change }
      isUnlinked = now.isUnlinked
    }
    if stat(path, &status) == 0 { return change(to: FileVersion(status)) }
    // Whoever has removed it has not changed it: all of it is still there to be sent.
    return isUnlinked ? nil : "it was moved"
  }

  private func change(to now: FileVersion) -> String? {
    version.change(to: now) { writes?.any ?? true }
  }
}

/// Why a file cannot be uploaded.
public enum UploadFileError: Error, Equatable, Sendable {
  /// It does not exist, or may not be read.
  case unreadable(SystemError)
  /// It is a directory.
  case directory
  /// A pipe, a device or a socket: it has no size, and its bytes can be read once.
  case notRegular
  /// It has other bytes than its size says, as the files of procfs and sysfs.
  case unknownSize
  /// It changed while it was read for its digest; how, in words.
  case changed(String)

  init?(typeOf status: stat) {
    switch status.st_mode & S_IFMT {
    case S_IFREG: return nil
    case S_IFDIR: self = .directory
    default: self = .notRegular
    }
  }
}

/// A file as the content of a stream: all of it is there, as often as it is needed. Owned by the network loop's thread.
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
      LiveStreamError(.source, "\(file.path) changed while it was being sent: \($0). Upload it again.")
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
