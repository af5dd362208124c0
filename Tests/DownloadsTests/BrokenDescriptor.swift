// A descriptor whose file has been replaced, for tests of errors of the disk.

import Glibc
import NetworkTesting
import Testing

extension TemporaryDirectory {
  /// Has a pipe replace this process's descriptor of a file, because a pipe can neither be synced nor written at an
  /// offset.
  func breakDescriptor(of name: String) throws {
    let file = "\(path)/\(name)"
    let descriptors = try fileNames(in: "/proc/self/fd").compactMap { Int32($0) }
    let found = descriptors.first { descriptor in
      var target = [CChar](repeating: 0, count: 4096)
      let length = max(0, readlink("/proc/self/fd/\(descriptor)", &target, target.count))
      return String(decoding: target[..<length].map(UInt8.init(bitPattern:)), as: UTF8.self) == file
    }
    let number = try #require(found)
    var ends: [Int32] = [-1, -1]
    #expect(pipe(&ends) == 0 && dup2(ends[1], number) == number)
    for end in ends { close(end) }
  }
}
