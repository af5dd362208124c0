// A directory for one test.

public import Glibc
internal import Synchronization

/// Removed with its content when the test is over, or its process exits.
public final class TemporaryDirectory: Sendable {
  public let path: String
  private let isKept = Atomic<Bool>(false)

  public init() throws {
    var template = Array("/tmp/sluice-test.XXXXXX".utf8CString)
    let made = template.withUnsafeMutableBufferPointer { buffer in
      // The array has a base address, because it is not empty.
      mkdtemp(buffer.baseAddress!).map { String(cString: $0) }
    }
    guard let made else { throw TestFailure("mkdtemp: \(String(cString: strerror(errno)))") }
    path = made
    RemovalAtExit.include(path)
  }

  deinit {
    if !isKept.load(ordering: .relaxed) { _ = try? TestProcess("/bin/rm", ["-rf", path]).wait() }
    RemovalAtExit.exclude(path)
  }

  /// Keeps it for an analysis of the failure.
  package func keep() {
    isKept.store(true, ordering: .relaxed)
    RemovalAtExit.exclude(path)
  }

  /// Writes a file, and returns its path.
  @discardableResult
  public func write(_ name: String, _ text: String, mode: mode_t = 0o600) throws -> String {
    try write(name, Array(text.utf8), mode: mode)
  }

  /// Writes a file, and returns its path.
  @discardableResult
  public func write(_ name: String, _ bytes: [UInt8], mode: mode_t = 0o600) throws -> String {
    let file = "\(path)/\(name)"
    let descriptor = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode)
    guard descriptor >= 0, Glibc.write(descriptor, bytes, bytes.count) == bytes.count else {
      throw TestFailure("writing \(file): \(String(cString: strerror(errno)))")
    }
    close(descriptor)
    return file
  }

  public func contents(_ name: String) throws -> [UInt8] { try fileContents("\(path)/\(name)") }

  /// The names in it, without hidden files and without sidecars.
  public var names: [String] { (try? fileNames(in: path)) ?? [] }
}

/// The names in a directory, without hidden files and without sidecars, which appear only when a server has the time
/// for their digests.
package func fileNames(in path: String) throws -> [String] {
  try allNames(in: path).filter { !$0.hasPrefix(".") && !$0.hasSuffix(".sidecar") }
}

/// The paths of the files that this process has open. That of a removed file ends with " (deleted)" (proc(5)).
package func openPaths() throws -> [String] {
  try fileNames(in: "/proc/self/fd").map { descriptor in
    var target = [UInt8](repeating: 0, count: Int(PATH_MAX))
    // Another thread may have closed it.
    let count = readlink("/proc/self/fd/\(descriptor)", &target, target.count)
    return String(decoding: target.prefix(max(0, count)), as: UTF8.self)
  }
}

/// All names in a directory, in order.
package func allNames(in path: String) throws -> [String] {
  guard let directory = opendir(path) else { throw TestFailure("\(path): \(String(cString: strerror(errno)))") }
  defer { closedir(directory) }
  var names: [String] = []
  while let entry = readdir(directory) {
    let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
    if name != ".", name != ".." { names.append(name) }
  }
  return names.sorted()
}

/// All bytes of a file, including files in /proc.
public func fileContents(_ path: String) throws -> [UInt8] {
  let descriptor = open(path, O_RDONLY | O_CLOEXEC)
  guard descriptor >= 0 else { throw TestFailure("reading \(path): \(String(cString: strerror(errno)))") }
  defer { close(descriptor) }
  var all: [UInt8] = []
  var buffer = [UInt8](repeating: 0, count: 256 << 10)
  while case let count = read(descriptor, &buffer, buffer.count), count > 0 { all += buffer[..<count] }
  return all
}
