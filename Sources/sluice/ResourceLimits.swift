// A limit of this process or of the system that a call has met, and how to raise it.

internal import EventLoops
internal import Glibc

extension SystemError {
  /// How to raise the limit that a call with this error code has met. Nil for other errors.
  ///
  /// - Parameter option: the option for the size of the file that was too large.
  static func remedy(forLimit code: Int32, size option: String? = nil) -> String? {
    switch code {
    case EMFILE: "Raise the limit of open files with ulimit -n."
    case ENFILE: "End other programs, or raise the system's limit of open files (sysctl fs.file-max)."
    case EFBIG:
      "Raise the limit of file sizes with ulimit -f, or use a file system that allows larger files"
        + "\(option.map { ", or choose a smaller \($0)" } ?? "")."
    default: nil
    }
  }
}

extension CommandError {
  /// A failed call on this machine, with the remedy for a limit.
  ///
  /// - Parameter option: the option for the size of the file that was too large.
  init(machine error: any Error, size option: String? = nil) {
    let remedy = (error as? SystemError).flatMap { SystemError.remedy(forLimit: $0.code, size: option) }
    self.init(.inputOutput, "\(error)\(remedy.map { ". \($0)" } ?? "")")
  }
}
