// The state of the disk that is required before bytes are acknowledged.

/// The durability of a stream's bytes before the server acknowledges them.
///
/// With every choice, an acknowledged byte survives if the server process crashes or is killed. The choices differ in
/// what survives a power failure or a crash of the kernel.
public enum Durability: String, Sendable, Equatable, CaseIterable {
  /// The kernel has received the bytes, and writes them to the disk at its own time, usually within about half a
  /// minute.
  case none
  /// The disk has a complete stream, file and name, before its sender gets the response: fdatasync(2), then rename,
  /// then fsync(2) of the directory. An incomplete upload is synced once per second in the background.
  case interval
  /// Like `interval`. In addition, no response reports an offset of an upload before all bytes up to it are on the
  /// disk.
  case always
}
