// A file to be uploaded, as it was when it was opened.

public import Digests
public import EventLoops
internal import Glibc
internal import UploadClient

/// A regular file, open for reading, whose size is the upload's length.
public final class UploadFile: Sendable {
  public let path: String
  /// In bytes, when it was opened.
  public let size: UInt64
  /// When it was last changed: seconds since 1970, and nanoseconds.
  public let modified: (seconds: Int, nanoseconds: Int)
  public let digest: Digest?
  private let descriptor: Int32

  /// - Parameter algorithm: if given, the whole file is read once, here and now, for its digest.
  /// - Throws: ``SystemError`` when the file cannot be opened; `EISDIR` or `EINVAL` for what is no regular file.
  public init(path: String, digest algorithm: DigestAlgorithm? = nil) throws(SystemError) {
    let descriptor = try retryingInterrupts("open \(path)") { open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) }
    var status = stat()
    guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG else {
      close(descriptor)
      throw SystemError(operation: "upload \(path)", code: status.st_mode & S_IFMT == S_IFDIR ? EISDIR : EINVAL)
    }
    self.path = path
    self.descriptor = descriptor
    size = UInt64(status.st_size)
    modified = (status.st_mtim.tv_sec, status.st_mtim.tv_nsec)
    do throws(SystemError) {
      if let algorithm { digest = try Self.digest(algorithm, of: descriptor, path) } else { digest = nil }
    } catch {
      close(descriptor)
      throw error
    }
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

  func body(_ range: Range<UInt64>) throws(SystemError) -> UploadBody {
    .file(try FileBody(descriptor: descriptor, range: range, name: path))
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

  func openBody(from offset: UInt64, maximum: UInt64?) throws(SystemError) -> UploadBody {
    let rest = file.size - min(offset, file.size)
    return try file.body(offset..<(offset + min(maximum ?? .max, rest)))
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
