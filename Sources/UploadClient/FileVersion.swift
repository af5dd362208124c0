// Detects whether a file has changed. An upload that mixes two versions of a file must not count as either of them.

public import EventLoops
package import Glibc

/// The state of an open file as fstat(2) reports it. Two different states mean that the file may have changed.
public struct FileVersion: Equatable, Sendable, CustomStringConvertible {
  /// The identity of the file: its device and inode.
  public struct Identity: Equatable, Sendable {
    let device: UInt
    let inode: UInt
  }

  /// Seconds since 1970, and nanoseconds.
  public struct Time: Equatable, Sendable, CustomStringConvertible {
    let seconds: Int
    let nanoseconds: Int

    init(_ time: timespec) { (seconds, nanoseconds) = (time.tv_sec, time.tv_nsec) }

    /// Seconds since 1970 with nine decimals.
    public var description: String { "\(seconds).\(String(1_000_000_000 + nanoseconds).dropFirst())" }
  }

  /// The size in bytes.
  public let size: UInt64
  /// The time of the last write to its content. The owner may set it to any value.
  public let modified: Time
  /// The time of the last change of its content, name or permissions. It cannot be set.
  public let changed: Time
  /// The device and inode of the file.
  public let identity: Identity
  /// Whether the file has no name any more. It exists as long as it is open.
  public let isUnlinked: Bool

  /// Reads the version of an open file.
  ///
  /// - Throws: ``EventLoops/SystemError`` when the descriptor is not open.
  public init(descriptor: Int32) throws(SystemError) {
    var status = stat()
    try retryingInterrupts("fstat") { fstat(descriptor, &status) }
    self.init(status)
  }

  package init(_ status: stat) {
    size = UInt64(clamping: status.st_size)
    (modified, changed) = (Time(status.st_mtim), Time(status.st_ctim))
    isUnlinked = status.st_nlink == 0
    identity = Identity(device: UInt(status.st_dev), inode: UInt(status.st_ino))
  }

  /// A description that identifies the file after this process has ended. See ``isSame(asDescribed:)``. It omits the
  /// device, because some file systems have a new device number each time they are mounted.
  public var description: String {
    "size=\(size), modified=\(modified), changed=\(changed), inode=\(identity.inode)"
  }

  /// Whether an earlier process described this file, and it has not been written since, as far as can be determined.
  ///
  /// The size and the time of the last write must be equal. If nothing at all has changed since, the inode may differ,
  /// because some file systems give their files new numbers when they are mounted. If something has changed, it may
  /// have been the permissions, the owner or a link. Then the inode must be equal, because only it distinguishes the
  /// file from a replacement.
  public func isSame(asDescribed text: String) -> Bool {
    let (found, own) = (text.split(separator: ", "), description.split(separator: ", "))
    guard found.count >= 3, found[..<2] == own[..<2] else { return false }
    return found[2] == own[2] || found.count == 4 && found[3] == own[3]
  }

  /// The change of the file from this version to `now`, in words. Nil if there is none.
  public func change(to now: FileVersion) -> String? { change(to: now) { nil } }

  /// The change of the file from this version to `now`, in words. Nil if there is none.
  ///
  /// - Parameter wasWritten: whether the file was written since this version was read; nil if it is not watched. Two
  ///   writes may have the same times, because a kernel sets them once per tick. And chmod(2), chown(2) and link(2) set
  ///   the time of the last change as well as a write.
  package func change(to now: FileVersion, wasWritten: () -> Bool?) -> String? {
    if now.identity != identity { return "another file replaced it" }
    if now.size < size { return "it was shortened from \(size) to \(now.size) bytes" }
    if now.size > size { return "it grew from \(size) to \(now.size) bytes" }
    let wasWritten = wasWritten()
    if now.modified != modified || wasWritten == true { return "its content was written" }
    // Losing its last name does not change the file, although the time of the last change differs.
    if now.changed == changed || now.isUnlinked || wasWritten == false { return nil }
    return "its content was written, or it cannot be watched and its permissions or links changed"
  }
}
