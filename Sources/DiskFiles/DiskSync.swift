// Syncs files to the disk: one by one while few wait, and all at once if there are many.
//
// Five thousand streams that are synced once per second would cause five thousand commits of the file system's journal,
// more than any disk can do. syncfs(2) causes one, and growing files need two of them.

internal import CLinux
package import EventLoops
internal import Glibc

/// The files that wait for a sync, on any file system. Any thread. The waiting is done on the worker's thread.
package final class DiskSync: Sendable {
  /// From this number of files on, the whole file system is synced instead.
  private static let many = 16
  /// The time between two attempts to open a file while descriptors are short, in milliseconds.
  private static let shortagePause: Int32 = 50

  package enum File: Sendable {
    case open(OpenFile)
    /// A name in a directory. If it is gone by then, it needs no sync.
    case named(String, in: Int32)
    /// A name that cannot be determined now, so everything is synced.
    case unknown
  }

  /// What must be synced before anything else is done.
  package struct Touched: Sendable {
    package var files: [File]
    /// The directory whose names must be synced.
    package var directory: Int32?
    /// Whether the files get a ``SyncedMark``.
    var areMarked = false

    package init(files: [File] = [], directory: Int32? = nil) { (self.files, self.directory) = (files, directory) }
  }

  /// Whether more bytes of a stream follow, so that the synced ones are acknowledged before the file is complete.
  package enum Growth: Sendable {
    case ended
    /// They follow in the file. Its later syncs also sync the earlier bytes.
    case continues
    /// They follow in another file, whose syncs also acknowledge the bytes of this one. So this sync waits for
    /// descriptors instead of failing without them.
    case continuesElsewhere
  }

  /// Which growing files get a ``SyncedMark``.
  package enum Marking: Sendable {
    case none
    /// All that can be opened. The bytes of another one are synced as well, but its mark counts fewer bytes than it
    /// has. So its sync ends with an error as after a shortage, and is to be repeated.
    case possible
    /// All that can be opened. A shortage of descriptors or memory is an error, because the sync succeeds later. The
    /// sync of a file that cannot be opened for another reason succeeds, and its mark counts fewer bytes than it has.
    case exceptInaccessible
    /// All. A sync fails if a file cannot be marked.
    case all
  }

  /// Work that runs after the earlier items are synced. Returns what it changes.
  package typealias Step = @Sendable () throws(SystemError) -> Touched

  private struct Request: Sendable {
    var touched: Touched
    let operation: String
    let growth: Growth
    var steps: ArraySlice<Step>
    let stepFailed: (@Sendable () -> Void)?
    let completion: @Sendable (SystemError?) -> Void
    var error: SystemError?
    /// Why a growing file has no mark for its synced bytes; nil if it has one.
    var unmarked: SystemError?
    var isOver = false
  }

  private let directory: Int32
  private let files: OpenFiles
  private let worker: BackgroundWorker
  private let waiting = Lock<[Request]>([])
  /// Whether the disk has refused to write anything. syncfs(2) reports an error once, perhaps to requests that did not
  /// ask for the file concerned. From then on, each file is asked for its own errors.
  private let hasRefused = Lock(false)

  /// Identifies the present boot of the machine.
  private let boot: String
  private let marking: Marking

  /// - Parameters:
  ///   - directory: on the file system of most files. It must stay open longer than this.
  ///   - boot: identifies the present boot of the machine, without spaces.
  ///   - marking: whether growing files are synced as they grow.
  package init(
    directory: Int32, worker: BackgroundWorker, files: OpenFiles, boot: String = BootIdentifier.current,
    marking: Marking = .none
  ) {
    self.files = files
    (self.boot, self.marking) = (boot, marking)
    self.directory = directory
    self.worker = worker
  }

  /// Syncs a file's bytes. Then runs each of `steps` and syncs what it has changed, such as a name in a directory.
  ///
  /// - Parameters:
  ///   - operation: its name in an error.
  ///   - stepFailed: called before `completion` if a step failed instead of a sync.
  ///   - directory: where the file's name must be synced before the first step; nil if that does not matter.
  ///   - growth: whether more bytes follow.
  ///   - completion: called on the worker's thread.
  package func sync(
    _ file: File, _ operation: String, _ steps: [Step] = [], stepFailed: (@Sendable () -> Void)? = nil,
    in directory: Int32? = nil, growth: Growth = .ended,
    _ completion: @escaping @Sendable (SystemError?) -> Void
  ) {
    var request = Request(
      touched: Touched(files: [file], directory: directory), operation: operation, growth: growth,
      steps: steps[...], stepFailed: stepFailed, completion: completion)
    request.touched.areMarked = growth != .ended && marking != .none
    let isFirst = waiting.withLock { waiting in
      waiting.append(request)
      return waiting.count == 1
    }
    // Requests that arrive before the worker starts are included.
    if isFirst { worker.execute { [self] in syncAll() } }
  }

  private func syncAll() {
    var requests = waiting.withLock { waiting in
      let taken = waiting
      waiting = []
      return taken
    }
    while !requests.isEmpty {
      syncTouched(&requests)
      for index in requests.indices {
        guard requests[index].error == nil, let step = requests[index].steps.popFirst() else {
          requests[index].completion(requests[index].error ?? requests[index].unmarked)
          requests[index].isOver = true
          continue
        }
        requests[index].touched = Touched()
        do throws(SystemError) { requests[index].touched = try step() } catch {
          requests[index].error = error
          requests[index].stepFailed?()
        }
      }
      requests.removeAll { $0.isOver }
    }
  }

  /// Syncs what the requests have changed. Those whose sync fails then have an error.
  private func syncTouched(_ requests: inout [Request]) {
    defer { unmarkFailed(requests) }
    // syncfs(2) reports errors since Linux 5.8. Then each file is synced, to find out which one failed.
    let fileCount = requests.reduce(0) { $0 + ($1.error == nil ? $1.touched.files.count : 0) }
    if fileCount >= Self.many, !hasRefused.withLock({ $0 }), areTogether(requests), syncTogether(&requests) { return }
    mark(&requests)
    for index in requests.indices where requests[index].error == nil {
      for file in requests[index].touched.files where requests[index].error == nil {
        // fdatasync(2) does not wait for an attribute alone.
        let sync = requests[index].touched.areMarked ? fsync : Glibc.fdatasync
        requests[index].error = self.sync(file, requests[index].operation, sync)
      }
    }
    // A name must not reach the disk before the bytes of its file, if a file of another request has replaced it.
    var directories: [Int32: SystemError?] = [:]
    for index in requests.indices where requests[index].error == nil {
      guard let directory = requests[index].touched.directory else { continue }
      if directories[directory] == nil {
        directories[directory] = .some(refusal("fsync of the directory", directory, fsync))
      }
      requests[index].error = directories[directory] ?? nil
    }
  }

  /// Syncs the file system, and then again with the new marks of growing files. For many files, this needs less
  /// processor time than writing each of them to the device. Returns false if the files must be synced one by one.
  private func syncTogether(_ requests: inout [Request]) -> Bool {
    let truncations = SyncedMark.truncationCount
    // By the numbers of the files, which are all on one file system.
    var sizes: [ino_t: UInt64] = [:]
    func status(_ descriptor: Int32) throws(SystemError) -> stat {
      var status = stat()
      try retryingInterrupts("fstat") { fstat(descriptor, &status) }
      return status
    }
    forEachMarked(&requests) { descriptor throws(SystemError) in
      let status = try status(descriptor)
      sizes[status.st_ino] = UInt64(status.st_size)
    }
    guard syncEverything("syncfs", of: directory) == nil else { return false }
    if sizes.isEmpty { return true }
    var areMarked = true
    forEachMarked(&requests) { descriptor throws(SystemError) in
      // Another file may have got the name, and even the number.
      let status = try status(descriptor)
      guard areMarked, let size = sizes[status.st_ino], UInt64(status.st_size) >= size else { return areMarked = false }
      areMarked = try SyncedMark(boot: boot, size: size).set(descriptor, unlessTruncatedSince: truncations)
    }
    return areMarked && syncEverything("syncfs", of: directory) == nil
  }

  /// Whether everything that the requests have changed is on the file system of ``directory``. An operator may have
  /// mounted another one for some of the files, such as those in `.uploads`.
  private func areTogether(_ requests: [Request]) -> Bool {
    guard let device = device(of: directory) else { return false }
    return requests.allSatisfy { request in
      if request.error != nil { return true }
      if let parent = request.touched.directory, parent != directory, self.device(of: parent) != device { return false }
      return request.touched.files.allSatisfy { isOn(device, $0) }
    }
  }

  private func device(of descriptor: Int32) -> UInt64? {
    var status = stat()
    return fstat(descriptor, &status) == 0 ? UInt64(status.st_dev) : nil
  }

  private func isOn(_ device: UInt64, _ file: File) -> Bool {
    switch file {
    case .open(let file): return file.place.device == device
    case .named(let name, in: let parent):
      var status = stat()
      // A missing one needs no sync.
      guard fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) == 0 else { return errno == ENOENT }
      return UInt64(status.st_dev) == device
    case .unknown: return true
    }
  }

  private func sync(_ file: File, _ operation: String, _ sync: (Int32) -> Int32) -> SystemError? {
    do throws(SystemError) {
      guard
        let refusal = try withDescriptor(of: file, operation, { descriptor in refusal(operation, descriptor, sync) })
      else { return syncEverything(operation, of: directory) }
      return refusal
    } catch {
      if case .named = file, error.isMissing { return nil }
      if error.isForeignChange || error.code == ENXIO { return error }
      // A failure to open it now does not concern its bytes, and the directory's descriptor is still open. It does not
      // help if the file is on another file system.
      let parent = if case .named(_, in: let parent) = file { parent } else { directory }
      guard let device = device(of: parent), isOn(device, file) else { return error }
      return syncEverything(operation, of: parent)
    }
  }

  /// Calls `body` with the file's descriptor. Returns nil if the file is unknown.
  ///
  /// - Parameter waits: whether it waits until there is a descriptor for the file. All later work of the worker waits,
  ///   too.
  private func withDescriptor<Result>(
    of file: File, _ operation: String, waits: Bool = false, _ body: (Int32) throws(SystemError) -> Result
  ) throws(SystemError) -> Result? {
    switch file {
    case .open(let file):
      let descriptor = try opened(waits: waits) { () throws(SystemError) in try file.acquire() }
      defer { file.release() }
      return try body(descriptor)
    case .named(let name, in: let directory):
      // Also a directory. A special file that somebody has put there cannot be synced.
      let descriptor = try opened(waits: waits) { () throws(SystemError) in
        try files.open(operation) { openat(directory, name, O_RDONLY | RegularFile.flags) }
      }
      defer { close(descriptor) }
      return try body(descriptor)
    case .unknown: return nil
    }
  }

  /// Calls `open`, again and again while descriptors or memory are short if it `waits`.
  private func opened(waits: Bool, _ open: () throws(SystemError) -> Int32) throws(SystemError) -> Int32 {
    while true {
      do throws(SystemError) { return try open() } catch {
        guard waits, error.isShortage else { throw error }
      }
      poll(nil, 0, Self.shortagePause)
    }
  }

  // MARK: Marks

  /// Marks a new growing file before its first byte. Without a later sync, none of its bytes count in another boot.
  package func begin(_ file: OpenFile) throws(SystemError) {
    guard marking != .none else { return }
    let descriptor = try file.acquire()
    defer { file.release() }
    try SyncedMark(boot: boot, size: 0).set(descriptor)
  }

  /// Removes the bytes of a growing file that were not synced before a power failure. Before others are added to it.
  ///
  /// - Parameter length: the file's length in bytes.
  /// - Returns: the length that remains.
  package func settle(_ file: OpenFile, length: UInt64) throws(SystemError) -> UInt64 {
    try file.withoutUnsynced(length, boot: boot, keepsMark: marking != .none)
  }

  /// Whether a growing file has a mark of this boot that counts fewer bytes than it has.
  ///
  /// - Parameter length: the file's length in bytes.
  package func hasUnmarked(_ file: OpenFile, length: UInt64) throws(SystemError) -> Bool {
    guard marking != .none else { return false }
    let descriptor = try file.acquire()
    defer { file.release() }
    return try SyncedMark.of(descriptor).map { $0.boot == boot && $0.size < length } ?? false
  }

  /// Marks all bytes of a growing file after the sync at its end. If the file cannot be completed, it grows again.
  package func markEnded(_ file: OpenFile, length: UInt64) {
    guard marking != .none else { return }
    do throws(SystemError) {
      try file.markSynced(upTo: length, boot: boot)
    } catch {
      // Its mark might exclude bytes that are acknowledged now. If this fails as well, the mark stays.
      try? file.removeSyncedMark()
    }
  }

  /// Writes the bytes of growing files to the device, and marks up to where. A sync then makes both permanent.
  private func mark(_ requests: inout [Request]) {
    // All writes begin before the first one is waited for.
    for request in requests where request.touched.areMarked && request.error == nil {
      for file in request.touched.files {
        _ = try? withDescriptor(of: file, request.operation) { sync_file_range($0, 0, 0, SLUICE_SYNC_FILE_RANGE_WRITE) }
      }
    }
    forEachMarked(&requests) { descriptor throws(SystemError) in try SyncedMark.renew(descriptor, boot: boot) }
  }

  /// Calls `body` with the descriptor of each growing file that gets a mark. A request whose file has an error ends
  /// with that, or its bytes are synced without a new mark.
  private func forEachMarked(_ requests: inout [Request], _ body: (Int32) throws(SystemError) -> Void) {
    for index in requests.indices where requests[index].touched.areMarked && requests[index].error == nil {
      let (operation, growth) = (requests[index].operation, requests[index].growth)
      requests[index].unmarked = nil
      for file in requests[index].touched.files {
        var isOpen = false
        do throws(SystemError) {
          let isKnown: Void? = try withDescriptor(of: file, operation, waits: growth == .continuesElsewhere) {
            descriptor throws(SystemError) in
            isOpen = true
            do throws(SystemError) { try body(descriptor) } catch { throw Self.refused(error) }
          }
          // An earlier mark of the file would be wrong after the sync.
          if isKnown == nil { throw SystemError(operation: operation, code: EIO) }
        } catch {
          if case .named = file, error.isMissing { continue }
          let isRequired =
            switch marking {
            case .none, .possible: false
            case .exceptInaccessible: error.isShortage
            case .all: true
            }
          if isOpen || isRequired {
            requests[index].error = error
          } else if marking == .possible, growth == .continues {
            requests[index].unmarked = Self.postponed(error)
          }
        }
      }
    }
  }

  /// The bytes of these may be missing, although their marks include them.
  private func unmarkFailed(_ requests: [Request]) {
    for request in requests where request.touched.areMarked && request.error != nil {
      for file in request.touched.files {
        _ = try? withDescriptor(of: file, request.operation) { descriptor throws(SystemError) in
          try SyncedMark.remove(descriptor)
        }
      }
    }
  }

  /// The error of a sync after which a mark counts fewer bytes than are synced. It does not concern the bytes, and the
  /// sync is to be repeated.
  private static func postponed(_ error: SystemError) -> SystemError {
    error.isShortage || error.isForeignChange ? error : SystemError(operation: "\(error)", code: EAGAIN)
  }

  /// An error of the disk itself. After a shortage, everything on its file system is synced instead.
  private func refusal(_ operation: String, _ descriptor: Int32, _ sync: (Int32) -> Int32) -> SystemError? {
    do throws(SystemError) {
      try retryingInterrupts(operation) { sync(descriptor) }
      return nil
    } catch {
      return error.isShortage ? syncEverything(operation, of: descriptor) : error
    }
  }

  /// Syncs the file system of an open file or directory.
  private func syncEverything(_ operation: String, of descriptor: Int32) -> SystemError? {
    do throws(SystemError) {
      try retryingInterrupts(operation) { syncfs(descriptor) }
      return nil
    } catch {
      hasRefused.withLock { $0 = true }
      return Self.refused(error)
    }
  }

  /// The error of a sync that has begun. It opens nothing, so a shortage occurred while the kernel was writing, and it
  /// has dropped the bytes.
  private static func refused(_ error: SystemError) -> SystemError {
    error.isShortage ? SystemError(operation: "\(error)", code: EIO) : error
  }
}
