// What the disk must have before anybody is told that bytes are stored.

/// What the server does with a stream's bytes before it acknowledges them.
///
/// Whatever is chosen, a byte that was acknowledged survives the server's death. What differs is the machine's: a
/// failure of the power, or of the kernel.
public enum Durability: String, Sendable, Equatable, CaseIterable {
  /// The kernel has it, and writes it to the disk when it likes, within about half a minute as a rule.
  case none
  /// The disk has a complete stream, file and name, before its sender is told: fdatasync(2), then rename, then fsync(2)
  /// of the directory. Of an upload that is not complete the disk is given everything once a second, in the background.
  case interval
  /// As `interval`, and no offset of an upload is told, in whatever answer, before the disk has all bytes up to it.
  case always
}
