// The files of this repository.

import Glibc
import NetworkTesting

enum Repository {
  static let root = {
    let file = #filePath
    return String(file.prefix(upTo: file.firstRange(of: "/Tests/")?.lowerBound ?? file.endIndex))
  }()

  /// The names in a directory, without those that begin with a dot.
  static func entries(of path: String) throws -> [String] {
    guard let directory = opendir(path) else { throw TestFailure("\(path): \(String(cString: strerror(errno)))") }
    defer { closedir(directory) }
    var names: [String] = []
    while let entry = readdir(directory) {
      let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      if !name.hasPrefix(".") { names.append(name) }
    }
    return names.sorted()
  }

  /// The paths of all files below a folder of the repository.
  static func files(below folder: String) throws -> [String] {
    var files: [String] = []
    var folders = ["\(root)/\(folder)"]
    while let folder = folders.popLast() {
      for name in try entries(of: folder) {
        var status = stat()
        guard lstat("\(folder)/\(name)", &status) == 0 else { continue }
        if status.st_mode & S_IFMT == S_IFDIR {
          folders.append("\(folder)/\(name)")
        } else {
          files.append("\(folder)/\(name)")
        }
      }
    }
    return files
  }
}
