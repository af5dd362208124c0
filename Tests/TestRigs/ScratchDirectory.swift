// A directory for a test, which is removed afterwards.

internal import Glibc

/// A new directory under `TMPDIR` (or /tmp), removed with its content when the last reference is released.
package final class ScratchDirectory: Sendable {
  package let path: String

  /// - Parameter parent: where to make it, e.g. `/dev/shm` for a directory in memory.
  package init(in parent: String? = nil) {
    let base = parent ?? getenv("TMPDIR").map { String(cString: $0) } ?? "/tmp"
    var template = Array("\(base)/sluice-test-XXXXXX".utf8CString)
    guard mkdtemp(&template) != nil else { preconditionFailure("no scratch directory under \(base)") }
    path = String(decoding: template.dropLast().map(UInt8.init(bitPattern:)), as: UTF8.self)
  }

  deinit { remove() }

  func remove() { Self.removeTree(path) }

  /// Symbolic links are removed, not followed.
  private static func removeTree(_ path: String) {
    if let stream = opendir(path) {
      while let entry = readdir(stream) {
        let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
        guard name != ".", name != ".." else { continue }
        if entry.pointee.d_type == UInt8(DT_DIR) { removeTree("\(path)/\(name)") } else { unlink("\(path)/\(name)") }
      }
      closedir(stream)
    }
    rmdir(path)
  }

  package func file(_ name: String) -> String { "\(path)/\(name)" }

  @discardableResult
  package func write(_ text: String, to name: String) -> String {
    write(Array(text.utf8), to: name)
  }

  @discardableResult
  package func write(_ bytes: [UInt8], to name: String) -> String {
    let path = file(name)
    guard let stream = fopen(path, "w"), fwrite(bytes, 1, bytes.count, stream) == bytes.count, fclose(stream) == 0
    else { preconditionFailure("cannot write \(path)") }
    return path
  }

  package func read(_ name: String) -> [UInt8] {
    guard let stream = fopen(file(name), "r") else { return [] }
    defer { fclose(stream) }
    var bytes: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 1 << 16)
    while case let count = fread(&chunk, 1, chunk.count, stream), count > 0 { bytes += chunk[..<count] }
    return bytes
  }
}
