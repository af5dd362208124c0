// Standard input, output and error of a process that was started without them.

internal import Glibc

enum StandardDescriptors {
  /// Opens `/dev/null` for each of the three that is closed. Otherwise the next descriptor, of an event loop perhaps,
  /// would become standard error, and text would be written into it.
  ///
  /// Each is opened for the opposite of its use: reading from standard input and writing to the others fails with
  /// `EBADF`, as with a closed one. Call it first of all.
  static func fill() {
    for descriptor in STDIN_FILENO...STDERR_FILENO
    where fcntl(descriptor, F_GETFD) == -1 && errno == EBADF {
      // The lowest free number is this one: those below are open by now.
      let opened = open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY)
      // A root directory without /dev: a directory can be neither read(2) nor written.
      if opened == -1 { _ = open("/", O_RDONLY | O_DIRECTORY) }
    }
  }
}
