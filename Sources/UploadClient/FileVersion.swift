// Whether a file is still as it was: an upload that mixes two versions of a file must not count as one of either.

public import EventLoops
package import Glibc

/// The state of an open file as fstat(2) reports it. Two different states mean that the file may have changed.
public struct FileVersion: Equatable, Sendable, CustomStringConvertible {
  /// Where the file is: its device and inode.
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

  /// In bytes.
  public let size: UInt64
  /// When its content was last written. Its owner may set it to anything.
  public let modified: Time
  /// When its content, name or permissions last changed. Nobody can set it.
  public let changed: Time
  /// Where the file is.
  public let identity: Identity
  /// Whether the file has no name any more. It exists for as long as somebody has it open.
  public let isUnlinked: Bool

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

  /// What the file is recognized by after this process has ended; see ``isSame(asDescribed:)``. Without the device, which
  /// some file systems number anew each time they are mounted.
  public var description: String {
    "size=\(size), modified=\(modified), changed=\(changed), inode=\(identity.inode)"
  }

  /// Whether an earlier process has described this file, and nobody has written into it since, as far as it shows.
  ///
  /// Size and time of the last write have to be the same. If nothing at all was changed since, the inode may be another,
  /// as on file systems that number their files anew when they are mounted. If something was, it may have been the
  /// permissions, the owner or a link, and then only the inode tells the file from another one in its place.
  public func isSame(asDescribed text: String) -> Bool {
    let (found, own) = (text.split(separator: ", "), description.split(separator: ", "))
    guard found.count >= 3, found[..<2] == own[..<2] else { return false }
    return found[2] == own[2] || found.count == 4 && found[3] == own[3]
  }

  /// How a file that was like this has changed, in words; nil when it has not.
  public func change(to now: FileVersion) -> String? { change(to: now) { true } }

  /// How a file that was like this has changed, in words; nil when it has not.
  ///
  /// - Parameter wasWritten: asked if nothing differs but the time of the last change, which chmod(2), chown(2) and
  ///   link(2) set as well as a write.
  package func change(to now: FileVersion, wasWritten: () -> Bool) -> String? {
    if now.identity != identity { return "another file took its place" }
    if now.size < size { return "it was shortened from \(size) to \(now.size) bytes" }
    if now.size > size { return "it grew from \(size) to \(now.size) bytes" }
    if now.modified != modified { return "its content was written" }
    // The loss of its last name changes nothing in the file, and is a change all the same.
    if now.changed == changed || now.isUnlinked || !wasWritten() { return nil }
    return "its content was written, or it cannot be watched and its permissions or links changed"
  }
}
