// The standard input, output and error of a process that was started without them.

internal import Glibc

enum StandardDescriptors {
  /// Opens `/dev/null` for each closed one of the three. Otherwise, the next descriptor, for example of an event loop,
  /// would become standard error, and text would be written to it.
  ///
  /// Each is opened in the opposite direction. Reading standard input and writing the others then fails with `EBADF`,
  /// as with a closed one. Call it first.
  static func fill() {
    for descriptor in STDIN_FILENO...STDERR_FILENO
    where fcntl(descriptor, F_GETFD) == -1 && errno == EBADF {
      // The lowest free number is this one, because all below are open.
      let opened = open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY)
      // A root directory without /dev. A directory can neither be read with read(2) nor written.
      if opened == -1 { _ = open("/", O_RDONLY | O_DIRECTORY) }
    }
  }
}
