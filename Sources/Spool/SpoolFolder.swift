// The folder of one stream in a spool directory, and the lock against other processes.

internal import EventLoops
internal import Glibc

/// `DIR/<stream>/`, locked for this process until the last reference to the object is released.
///
/// It contains the file `lock` with the id of the locking process, and a `.spool` file for each stretch. Any thread may
/// use it. If `lock` is removed, the locks of the stretches still keep other processes out.
///
/// On a full disk, there may be no folder, or no lock in it. Then a ``LockInMemory`` takes the lock's place until the
/// first stretch has a file.
package final class SpoolFolder: Sendable {
  /// The stream's name.
  package let stream: String
  /// The folder's path.
  package let path: String
  let disk: any SpoolDisk
  private let directory: String
  private let claim: Lock<Claim>

  /// One of its members is nil.
  private struct Claim {
    /// The lock in the folder; nil while the disk has no space for it.
    var file: SpoolDescriptor?
    /// The lock in memory until then.
    var inMemory: LockInMemory?
  }

  /// Creates the folder, and the spool directory if necessary, both with mode 0700. Locks the folder. Removes files
  /// that a killed process had begun to create. Files of other programs stay as they are.
  ///
  /// - Parameters:
  ///   - mayLackSpace: whether a disk without space for the folder or its lock is no error. They are made with the
  ///     first stretch's file then.
  ///   - makesFolder: whether a missing folder is made now. Otherwise, a stream without a folder is locked in memory.
  /// - Throws: ``SpoolError`` with ``SpoolError/Cause/inUse(_:)`` while another process, or another object of this one,
  ///   has locked the folder; with ``SpoolError/Cause/foreignLock`` if the file `lock` is not Sluice's; with
  ///   ``SpoolError/Cause/notARegularFile`` if something else has the name of the lock, in the folder or in memory.
  package init(
    directory: String, stream: String, disk: any SpoolDisk = .system, mayLackSpace: Bool = false,
    makesFolder: Bool = true
  ) throws(SpoolError) {
    guard Self.isValid(stream: stream) else { throw SpoolError(.invalidStreamName, path: "\(directory)/\(stream)") }
    self.stream = stream
    self.disk = disk
    self.directory = directory
    path = "\(directory)/\(stream)"
    var claim = Claim()
    // Whether a lock in memory replaces the one that this error prevents.
    func isReplaced(_ failure: SpoolError) -> Bool {
      mayLackSpace && failure.isLackOfSpace || !makesFolder && failure.code == ENOENT
    }
    do throws(SpoolError) {
      claim.file = try Self.lock(directory, path, disk, looksInMemory: true, makesFolder: makesFolder)
    } catch let failure {
      guard isReplaced(failure), let inMemory = try LockInMemory.take(for: path, creates: true) else { throw failure }
      // Another process may have found space before this one had a lock. Its own check comes after its lock as well, so
      // at least one of the two finds the other.
      do throws(SpoolError) {
        claim.file = try Self.lock(directory, path, disk, looksInMemory: false, makesFolder: makesFolder)
      } catch {
        guard isReplaced(error) else { throw error }
        claim.inMemory = inMemory
      }
    }
    self.claim = Lock(claim)
  }

  /// Makes the folder and its lock, if the disk had no space for them before. Any thread.
  ///
  /// - Throws: ``SpoolError``. This can be called again.
  func complete() throws(SpoolError) {
    try claim.withLock { claim throws(SpoolError) in
      guard claim.file == nil else { return }
      claim.file = try Self.lock(directory, path, disk, looksInMemory: false, makesFolder: true)
      claim.inMemory = nil
    }
  }

  /// Locks the folder.
  ///
  /// - Parameters:
  ///   - looksInMemory: whether another process may have a lock in memory.
  ///   - makesFolder: whether the folder is made first if it is missing. Otherwise, the error is `ENOENT`.
  private static func lock(
    _ directory: String, _ path: String, _ disk: any SpoolDisk, looksInMemory: Bool, makesFolder: Bool
  ) throws(SpoolError) -> SpoolDescriptor {
    let lockPath = "\(path)/\(lockName)"
    let lock: SpoolDescriptor
    // The process that made this file had synced both folders before. A source waits to be captured meanwhile.
    if let found = try? SpoolDescriptor(lockPath, flags: O_RDWR | O_NOFOLLOW, disk: disk) {
      lock = found
    } else {
      if makesFolder {
        try makeFolder(directory, disk: disk)
        try makeFolder(path, disk: disk)
      }
      lock = try SpoolDescriptor(lockPath, flags: O_RDWR | O_CREAT | O_NOFOLLOW, disk: disk)
    }
    guard try lock.lock() else { throw SpoolError(.inUse(process(in: lock)), path: path) }
    if looksInMemory { _ = try LockInMemory.take(for: path, creates: false) }
    // If the disk cannot read it now, it keeps the id of an earlier process.
    if let content = try? lock.read(longestLock + 1, at: 0) {
      guard isOwn(lock: content) else { throw SpoolError(.foreignLock, path: lockPath) }
      // An empty lock file, on a full disk, is just as good.
      try? lock.setSize(to: 0)
      try? lock.write(Array("\(getpid())\n".utf8), at: 0)
    }
    for name in try names(in: path, disk: disk) where isUnfinished(name) {
      try disk.retrying(path) { () throws(SystemError) in try disk.unlink("\(path)/\(name)") }
    }
    return lock
  }

  /// The paths of the stretches, oldest first.
  package func stretches() throws(SpoolError) -> [String] {
    do throws(SpoolError) {
      return try Self.stretches(in: path, disk: disk)
    } catch {
      // There is no folder yet.
      guard error.code == ENOENT, claim.withLock({ $0.file == nil }) else { throw error }
      return []
    }
  }

  /// The same for a folder that another process may own.
  package static func stretches(in path: String, disk: any SpoolDisk = .system) throws(SpoolError) -> [String] {
    try names(in: path, disk: disk)
      .compactMap { name in Stretch(name).map { ($0, name) } }
      .sorted { ($0.0.created, $0.1) < ($1.0.created, $1.1) }
      .map { "\(path)/\($0.1)" }
  }

  /// The names of the streams in a spool directory, and of the folders that cannot be read, sorted.
  package static func streams(in directory: String, disk: any SpoolDisk = .system) throws(SpoolError) -> [String] {
    try names(in: directory, disk: disk).filter { name in
      guard isValid(stream: name) else { return false }
      // A lock or a stretch distinguishes a stream's folder from anything else that may be there.
      let path = "\(directory)/\(name)"
      if let lock = try? SpoolDescriptor("\(path)/\(lockName)", flags: O_RDONLY | O_NOFOLLOW, disk: disk) {
        guard let content = try? lock.read(longestLock + 1, at: 0), !isOwn(lock: content) else { return true }
      }
      do throws(SpoolError) {
        return try !stretches(in: path, disk: disk).isEmpty
      } catch {
        // A folder that cannot be read may be a stream's. A file of another kind is none.
        return error.code != ENOTDIR && error.code != ENOENT
      }
    }.sorted()
  }

  /// The user of a folder.
  package enum User: Equatable, Sendable {
    case nobody
    /// The process that has the lock, with its id if the lock file has it.
    case process(Int32?)
  }

  /// The user of the folder at `path`. The query does not affect that user.
  package static func user(of path: String, disk: any SpoolDisk = .system) throws(SpoolError) -> User {
    do throws(SpoolError) {
      let lock = try SpoolDescriptor("\(path)/\(lockName)", flags: O_RDONLY | O_NOFOLLOW, disk: disk)
      if try lock.isLocked() { return .process(process(in: lock)) }
    } catch {
      // No object can have locked what is missing or is not a regular file.
      guard error.code == ENOENT || error.cause == .notARegularFile else { throw error }
    }
    if let user = LockInMemory.user(of: path) { return user }
    return try stretches(in: path, disk: disk).contains { isInUse($0, disk: disk) } ? .process(nil) : .nobody
  }

  /// Whether another object, of this process or another, may write to a stretch. False if the stretch cannot be opened,
  /// so that it does not hide the others.
  static func isInUse(_ stretch: String, disk: any SpoolDisk) -> Bool {
    (try? SpoolDescriptor(stretch, flags: O_RDONLY | O_NOFOLLOW, disk: disk).isLocked()) == true
  }

  /// Whether a stream can have this name.
  package static func isValid(stream: String) -> Bool {
    (1...64).contains(stream.utf8.count) && !stream.hasPrefix(".")
      && stream.utf8.allSatisfy { byte in
        switch byte {
        case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
          UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "."), UInt8(ascii: "_"), UInt8(ascii: "-"):
          true
        default: false
        }
      }
  }

  static let lockName = "lock"
  /// The end of a file's name until everything in it is on the disk.
  static let unfinished = ".new"
  private static let longestLock = 16

  /// Whether a process gives a stretch's file this name until everything in it is on the disk.
  private static func isUnfinished(_ name: String) -> Bool {
    name.hasPrefix(".") && name.hasSuffix(unfinished)
      && Stretch(String(name.dropFirst().dropLast(unfinished.count))) != nil
  }

  /// Whether a lock file has the content that Sluice gives it. A power failure may leave digits of two process ids, or
  /// zeros.
  private static func isOwn(lock content: [UInt8]) -> Bool {
    content.count <= longestLock
      && content.allSatisfy { byte in
        switch byte {
        case UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "\n"), 0: true
        default: false
        }
      }
  }

  static func process(in lock: SpoolDescriptor) -> Int32? {
    guard let text = try? lock.read(16, at: 0) else { return nil }
    return Int32(String(decoding: text.prefix { $0 != UInt8(ascii: "\n") }, as: UTF8.self)).flatMap {
      $0 > 0 ? $0 : nil
    }
  }

  private static func names(in path: String, disk: any SpoolDisk) throws(SpoolError) -> [String] {
    try disk.retrying(path) { () throws(SystemError) in try disk.names(in: path) }
  }

  private static func makeFolder(_ path: String, disk: any SpoolDisk) throws(SpoolError) {
    var isNew = true
    do throws(SpoolError) {
      try disk.retrying(path) { () throws(SystemError) in try disk.makeFolder(path, mode: 0o700) }
    } catch {
      guard error.code == EEXIST else { throw error }
      isNew = false
    }
    // Otherwise a power failure could remove the folder with everything synced in it. An existing folder may remain
    // from an attempt that failed here.
    do throws(SpoolError) {
      try disk.retrying(path) { () throws(SystemError) in try disk.synchronizeFolder(folder(of: path)) }
    } catch {
      // If this process may not read the parent folder, the creator of the folder must sync it.
      guard !isNew, error.code == EACCES else { throw error }
    }
  }

  /// The path as the kernel resolves it. Components that do not exist stay as they are.
  package static func resolved(_ path: String) -> String {
    if let resolved = realpath(path, nil) {
      defer { free(resolved) }
      return String(cString: resolved)
    }
    let isMissing = errno == ENOENT
    let parent = folder(of: path)
    guard isMissing, parent != path, let name = path.split(separator: "/").last else { return path }
    let place = resolved(parent)
    return place == "/" ? "/\(name)" : "\(place)/\(name)"
  }

  /// Distinguishes folders in file names of constant length: the hash of Fowler, Noll and Vo (FNV-1a). It needs no
  /// secrecy.
  package static func sum(of path: String) -> UInt64 {
    path.utf8.reduce(0xcbf2_9ce4_8422_2325) { ($0 ^ UInt64($1)) &* 0x100_0000_01b3 }
  }

  /// The folder that contains the last component of `path`.
  package static func folder(of path: String) -> String {
    var path = path[...]
    while path.count > 1, path.hasSuffix("/") { path.removeLast() }
    guard let slash = path.lastIndex(of: "/") else { return "." }
    return slash == path.startIndex ? "/" : String(path[..<slash])
  }
}

/// Identifies a stretch.
package struct StretchIdentity: Equatable, Sendable {
  /// 16 bytes.
  package let id: [UInt8]
  /// Wall clock in milliseconds since 1970.
  package let created: Int64

  /// A new identity.
  package init() {
    var random = SystemRandomNumberGenerator()
    id = (0..<16).map { _ in UInt8.random(in: .min ... .max, using: &random) }
    created = max(0, WallClock.now.sinceEpoch)
  }

  /// Nil if it is invalid.
  package init?(id: [UInt8], created: Int64) {
    guard id.count == 16, created >= 0 else { return nil }
    (self.id, self.created) = (id, created)
  }

  /// The name of its file in the stream's folder.
  package var fileName: String { Stretch(created: created, id: id).name }
}

/// The name of a stretch's file: `<created-ms>-<16 hex of id>.spool`.
struct Stretch: Equatable {
  var created: Int64
  /// The first eight bytes of the file's id.
  var id: UInt64

  init(created: Int64, id: [UInt8]) {
    self.created = created
    self.id = id.prefix(8).reduce(0) { $0 << 8 | UInt64($1) }
  }

  init?(_ name: String) {
    guard name.hasSuffix(".spool") else { return nil }
    let parts = name.dropLast(6).split(separator: "-", omittingEmptySubsequences: false)
    guard parts.count == 2, let created = Int64(parts[0]), created >= 0, parts[1].utf8.count == 16,
      let id = UInt64(parts[1], radix: 16)
    else { return nil }
    self.created = created
    self.id = id
    // Other programs may write the same numbers in another way.
    guard name == self.name else { return nil }
  }

  var name: String {
    let digits = String(id, radix: 16)
    return "\(created)-\(String(repeating: "0", count: 16 - digits.count))\(digits).spool"
  }
}
