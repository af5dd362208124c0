// Whether two paths of the command line lead to one file.

internal import Glibc

enum FileIdentity {
  /// Whether both paths name the same file, directly or through links, or would name the same new file.
  static func isSame(_ first: String, _ second: String) -> Bool {
    // This also ends the recursion at a directory that cannot be examined.
    if first == second { return true }
    var (one, other) = (stat(), stat())
    switch (stat(first, &one) == 0, stat(second, &other) == 0) {
    case (true, true): return one.st_dev == other.st_dev && one.st_ino == other.st_ino
    case (false, false):
      let names = [first, second].map { path in path.split(separator: "/").last }
      return names[0] == names[1] && isSame(ReplacedFile.directory(of: first), ReplacedFile.directory(of: second))
    default: return false
    }
  }
}
