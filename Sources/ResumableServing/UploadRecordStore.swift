// Upload resources on the disk: a directory beside the streams with a record for each, and the bytes of uploads whose
// handlers do not keep them.

internal import CLinux
package import DiskFiles
package import EventLoops
internal import Glibc
package import ResumableUploads
package import StreamServing

/// The directory `.uploads` of a store. A record is replaced atomically: SIGKILL at any instant leaves the former or
/// the new one. Only on the loop's thread, except for the worker's closures.
package final class UploadRecordStore: UploadRecords, @unchecked Sendable {
  private static let recordSuffix = ".upload"
  private static let bodySuffix = ".body"
  private static let temporarySuffix = ".new"
  private static let agesPrefix = "ages-"

  private let records: RecordsDirectory
  /// The open directory. -1 until something is kept there.
  private var directory: Int32
  /// The open directory and its name; nil if none is open.
  private var place: FilePlace?
  private let durability: Durability
  private let worker: BackgroundWorker
  private let disk: DiskSync
  private let files: OpenFiles
  private let loop: EventLoop
  private let assignment: LoopAssignment
  private let emit: (ServerEvent) -> Void
  private let temporaryName: String
  /// The temporary names of all loops.
  private let temporaryNames: Set<String>
  /// The directory listing in progress, of what an earlier server has left.
  private var names: DirectoryNames?
  private var isListed = false
  /// The ages when this server began.
  private let ages: UploadAges
  /// How many writes the disk has not finished yet.
  private var pending = 0
  private var idle: (() -> Void)?

  /// - Parameter records: the directory, which all loops share.
  package init(
    in records: RecordsDirectory, disk: DiskSync, worker: BackgroundWorker, files: OpenFiles, durability: Durability,
    loop: EventLoop, assignment: LoopAssignment, emit: @escaping (ServerEvent) -> Void = { _ in }
  ) throws(SystemError) {
    self.records = records
    self.emit = emit
    self.durability = durability
    (self.worker, self.disk, self.files) = (worker, disk, files)
    self.loop = loop
    self.assignment = assignment
    func temporary(_ index: Int) -> String { "record-\(index)\(Self.temporarySuffix)" }
    temporaryName = temporary(assignment.index)
    temporaryNames = Set((0..<assignment.count).map(temporary))
    var opened: RecordsDirectory.Opened?
    do throws(SystemError) {
      opened = try records.open(makesIt: false)
    } catch {
      if !error.isMissing { throw error }
    }
    let directory = opened?.descriptor ?? -1
    self.directory = directory
    place = opened?.place
    ages = Self.readAges(in: directory, files)
  }

  deinit { if directory >= 0 { close(directory) } }

  /// The directory, which is made when something is to be kept there, and again if somebody has removed or moved it.
  private func opened() throws(SystemError) -> Int32 {
    guard !hasName else { return directory }
    let opened = try records.open(makesIt: true)
    if durability != .none { fsync(records.parent) }
    if opened.isReplacement {
      emit(
        ServerEvent(
          .warning,
          reason: "the directory \(RecordsDirectory.name) was removed or moved while the server was running. The "
            + "server uses a new one. Unfinished uploads that had begun before may be lost"))
    }
    if directory < 0 {
      directory = opened.descriptor
    } else {
      defer { close(opened.descriptor) }
      // The new directory gets the same number, because waiting work refers to that.
      try retryingInterrupts("open \(RecordsDirectory.name) again") { dup3(opened.descriptor, directory, O_CLOEXEC) }
    }
    place = opened.place
    return directory
  }

  /// Whether a directory is open and still has its name. A record goes to no other one, because the next server would
  /// not find it.
  private var hasName: Bool { place.map { !$0.isLost } ?? false }

  // MARK: Records

  package func write(
    _ record: UploadRecord, _ token: String, syncing: Bool, _ completion: @escaping (SystemError?) -> Void
  ) {
    var record = record
    record.token = token
    guard let text = record.text else {
      return completion(SystemError(operation: "write the record of an upload", code: EINVAL))
    }
    let bytes = Array(text.utf8)
    let directory: Int32
    do throws(SystemError) { directory = try opened() } catch { return completion(error) }
    switch durability {
    case .none, .interval:
      let error = Self.attempt { () throws(SystemError) in
        try replace(token + Self.recordSuffix, bytes, in: directory, by: temporaryName, syncing: false)
      }
      if error == nil && syncing { return sync(token, completion) }
      if error == nil && durability == .interval { sync(token) { _ in } }
      completion(error)
    case .always:
      pending += 1
      // Used on the loop's thread only. The worker merely carries it back there.
      nonisolated(unsafe) let completion = completion
      worker.execute { [self] in
        let error = Self.attempt { () throws(SystemError) in
          try replace(token + Self.recordSuffix, bytes, in: directory, by: temporaryName, syncing: true)
          try retryingInterrupts("fsync of \(RecordsDirectory.name)") { fsync(directory) }
        }
        loop.execute { [self] in
          completion(error)
          written()
        }
      }
    }
  }

  /// The file for the next record, or the file that the last record has replaced. It is reused, because ext4 avoids the
  /// inodes of files that were removed in the last seconds. With a thousand removed records, creating any file would
  /// have to search through all of them.
  ///
  /// Its blocks are not reused without a sync. A file system that orders data before metadata (ext4's data=ordered)
  /// writes new blocks before it commits the exchange of the names, but may write existing blocks later. After a power
  /// failure, one upload's name could then have the former record of another.
  ///
  /// Each loop has its own.
  private func replace(
    _ name: String, _ bytes: [UInt8], in directory: Int32, by temporaryName: String, syncing: Bool
  ) throws(SystemError) {
    let flags = O_WRONLY | O_CREAT | (syncing ? 0 : O_TRUNC)
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try openReplacement(temporaryName, in: directory, flags)
    } catch {
      // What the last record has replaced may have been a FIFO or a link, which would stop all uploads.
      guard error.isSpecialFile, unlinkat(directory, temporaryName, 0) == 0 else { throw error }
      descriptor = try openReplacement(temporaryName, in: directory, flags)
    }
    defer { close(descriptor) }
    try writeAll(bytes, to: descriptor, "write the record of an upload")
    try retryingInterrupts("ftruncate the record of an upload") { ftruncate(descriptor, off_t(bytes.count)) }
    if syncing { try retryingInterrupts("fdatasync of the record of an upload") { fdatasync(descriptor) } }
    for flags in [SLUICE_RENAME_NOREPLACE, SLUICE_RENAME_EXCHANGE] {
      if renameat2(directory, temporaryName, directory, name, flags) == 0 { return }
      // Some network file systems do not support these flags.
      if errno != EEXIST { break }
    }
    try retryingInterrupts("rename the record of an upload") { renameat(directory, temporaryName, directory, name) }
  }

  private func openReplacement(_ name: String, in directory: Int32, _ flags: Int32) throws(SystemError) -> Int32 {
    try files.openRegular("\(RecordsDirectory.name)/\(name)") {
      openat(directory, name, flags | RegularFile.flags, 0o600)
    }
  }

  /// In the background. Until then, a power failure may bring back the former record.
  private func sync(_ token: String, _ completion: @escaping (SystemError?) -> Void) {
    pending += 1
    // Used on the loop's thread only. The worker merely carries it back there.
    nonisolated(unsafe) let completion = completion
    let record = DiskSync.File.named(token + Self.recordSuffix, in: directory)
    disk.sync(record, "fdatasync of a record", in: directory) { [self] error in
      loop.execute { [self] in
        completion(error)
        written()
      }
    }
  }

  private func written() {
    pending -= 1
    if pending == 0, let idle {
      self.idle = nil
      idle()
    }
  }

  package func whenIdle(_ action: @escaping () -> Void) {
    if pending == 0 { action() } else { idle = action }
  }

  package func touch(_ token: String) { utimensat(directory, token + Self.recordSuffix, nil, 0) }

  package func noteAges(_ idle: [(token: String, idle: Duration)]) {
    guard hasName else { return }
    var text = ""
    for (token, idle) in idle {
      var status = stat()
      if fstatat(directory, token + Self.recordSuffix, &status, AT_SYMLINK_NOFOLLOW) == 0 {
        text += UploadAges.line(token, status, idle: idle)
      }
    }
    // Without this file, uploads live longer than necessary.
    let name = "\(Self.agesPrefix)\(assignment.index)"
    try? replace(name, Array(text.utf8), in: directory, by: name + "~", syncing: false)
  }

  package func remove(_ token: String) {
    // A directory that was moved away is left as it is.
    guard hasName else { return }
    let directory = directory
    let remove = { @Sendable in
      for suffix in [Self.recordSuffix, Self.bodySuffix] { _ = unlinkat(directory, token + suffix, 0) }
    }
    // After the worker's pending writes, or the record would come back.
    if durability == .always { worker.execute(remove) } else { remove() }
  }

  /// Also removes the temporary files of a server that died.
  package func nextTokens() throws(SystemError) -> [String]? {
    guard directory >= 0, !isListed else { return nil }
    let found: [String]
    do throws(SystemError) {
      let listing = if let names { names } else { try DirectoryNames(of: directory) }
      names = listing
      found = try listing.next(256)
    } catch {
      // Some names may have been read and lost.
      names = nil
      throw error
    }
    guard !found.isEmpty else {
      names = nil
      isListed = true
      return nil
    }
    var tokens: [String] = []
    for name in found {
      if name.hasSuffix(Self.temporarySuffix) {
        // The first loop removes them, but none that a loop of this server may be writing.
        if assignment.index == 0, !temporaryNames.contains(name) { worker.executeSlice { [self] in removeSlice(name) } }
      } else if name.hasSuffix(Self.recordSuffix) {
        let token = String(name.dropLast(Self.recordSuffix.count))
        if assignment.owns(token) { tokens.append(token) }
      }
    }
    return tokens
  }

  package func read(_ token: String) throws(SystemError) -> StoredUpload? {
    guard directory >= 0 else { return nil }
    var stored = StoredUpload(token: token, record: nil, age: .zero)
    do throws(SystemError) {
      let (bytes, status) = try Self.contents(token + Self.recordSuffix, in: directory, files)
      let text = String(decoding: bytes, as: UTF8.self)
      stored.age = ages.age(of: token, status)
      stored.size = bytes.count
      stored.record = UploadRecord(parsing: text).flatMap { $0.token == nil || $0.token == token ? $0 : nil }
    } catch {
      if error.isMissing { return nil }
      throw error
    }
    if let record = stored.record, record.holdsSecrets { clean(record, token) }
    return stored
  }

  package func recordName(_ token: String) -> String { "\(RecordsDirectory.name)/\(token)\(Self.recordSuffix)" }

  /// Reads the ages of uploads that earlier servers have written.
  private static func readAges(in directory: Int32, _ files: OpenFiles) -> UploadAges {
    var ages = UploadAges()
    for index in 0..<256 {
      if let (bytes, _) = try? contents("\(agesPrefix)\(index)", in: directory, files) { ages.read(bytes) }
    }
    return ages
  }

  private static func contents(
    _ name: String, in directory: Int32, _ files: OpenFiles
  ) throws(SystemError) -> (bytes: [UInt8], status: stat) {
    let path = "\(RecordsDirectory.name)/\(name)"
    let descriptor = try files.openRegular(path) { openat(directory, name, O_RDONLY | RegularFile.flags) }
    defer { close(descriptor) }
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw .last("fstat \(path)") }
    return (try RegularFile.contents(of: descriptor, path), status)
  }

  /// Writes a record again without the credentials that an earlier version stored in it.
  private func clean(_ record: UploadRecord, _ token: String) {
    write(record, token, syncing: false) { _ in }
    // The temporary file now has the replaced content.
    let scrub = { @Sendable [directory, temporaryName] in
      let descriptor = try? RegularFile.open(temporaryName, in: directory, O_WRONLY | O_TRUNC)
      if let descriptor { close(descriptor) }
    }
    if durability == .always { worker.execute(scrub) } else { scrub() }
  }

  // MARK: Bytes

  package func openBody(_ token: String, creating: Bool) throws(SystemError) -> (file: OpenFile, count: UInt64) {
    // O_APPEND for the same reason as in a stream's file.
    let flags = O_RDWR | O_APPEND
    let (directory, name) = (try opened(), token + Self.bodySuffix)
    // By its path from the parent, so that the file does not count as present in a directory that was moved.
    let path = "\(RecordsDirectory.name)/\(name)"
    let (descriptor, status) = try files.openWithStatus(path) {
      openat(directory, name, flags | RegularFile.flags | (creating ? O_CREAT : 0), 0o600)
    }
    let file = OpenFile(descriptor, path, in: records.parent, flags, status, files)
    if creating, status.st_size == 0 { try disk.begin(file) }
    return (file, try disk.settle(file, length: UInt64(status.st_size)))
  }

  package func measureBody(_ token: String) throws(SystemError) -> UInt64? {
    let (file, count) = try openBody(token, creating: false)
    return try file.lacksSynced() ? nil : count
  }

  package func synchronizeBody(of token: String, _ completion: @escaping (SystemError?) -> Void) {
    // Used on the loop's thread only. The worker merely carries it back there.
    nonisolated(unsafe) let completion = completion
    let body = DiskSync.File.named(token + Self.bodySuffix, in: directory)
    disk.sync(body, "fdatasync of an upload", in: directory, growth: .continues) { [loop] error in
      loop.execute { completion(error) }
    }
  }

  package func synchronizeBody(_ file: OpenFile, _ completion: @escaping (SystemError?) -> Void) {
    // Used on the loop's thread only. The worker merely carries it back there.
    nonisolated(unsafe) let completion = completion
    disk.sync(.open(file), "fdatasync of an upload", growth: .continues) { [loop] error in
      loop.execute { completion(error) }
    }
  }

  package func removeBody(_ token: String) {
    // A directory that was moved away is left as it is.
    guard hasName else { return }
    let (name, removed) = (token + Self.bodySuffix, token + Self.bodySuffix + Self.temporarySuffix)
    // If the server is killed before the worker has removed it, the next one finds it by this name.
    guard renameat(directory, name, directory, removed) == 0 else { return _ = unlinkat(directory, name, 0) }
    worker.executeSlice { [self] in removeSlice(removed) }
  }

  /// Removes a file that nobody uses any more, or the next part of a large one. On the worker. What the disk refuses
  /// remains for the next server.
  private func removeSlice(_ name: String) {
    guard (try? FileRemoval.remove(name, in: directory)) == false else { return }
    worker.executeSlice { [self] in removeSlice(name) }
  }

  package func bodyName(_ token: String) -> String? { "\(RecordsDirectory.name)/\(token)\(Self.bodySuffix)" }

  private static func attempt(_ body: () throws(SystemError) -> Void) -> SystemError? {
    do throws(SystemError) {
      try body()
      return nil
    } catch {
      return error
    }
  }
}
