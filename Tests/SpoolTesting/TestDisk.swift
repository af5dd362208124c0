// A disk in memory that loses unsynced data at a power failure, fails calls on request, and can die in the middle of a
// call.

package import EventLoops
internal import Glibc
package import PropertyTesting
package import Spool

/// Files and names as a kernel keeps them: the processes' view, and the durable data. One thread at a time.
///
/// Between two syncs, each 512-byte sector of a file has versions, and a power failure leaves any one of them. Names
/// change in order, as with a journal, and a power failure leaves some of the changes. A failed fdatasync drops pages,
/// and the next one succeeds without them, as on Linux.
package final class TestDisk: SpoolDisk, @unchecked Sendable {
  package static let sector = 512

  package enum Operation: String, CaseIterable, Sendable {
    case open, write, read, synchronizeData, synchronizeFolder, setSize, punchHole, allocate
    case rename, unlink, makeFolder, lock, status, names, nextData, nextHole
  }

  package enum Fault: Sendable, Equatable {
    case error(Int32)
    /// Fewer bytes than requested, for reads and writes.
    case short
    /// No bytes, and no error either, for writes.
    case nothing
    /// The process is killed in the middle of the call: whole pages of it are done, and no later call succeeds.
    case death
  }

  /// The faults of the n-th calls of each kind, counted from 1.
  package var faults: [Operation: [Int: Fault]] = [:]
  /// Fails every call of a kind from the n-th on.
  package var lasting: [Operation: (from: Int, code: Int32)] = [:]
  /// Calls so far.
  package private(set) var calls: [Operation: Int] = [:]
  /// The total number of calls after which the process dies.
  package var dies: Int?
  package private(set) var callCount = 0
  package private(set) var isDead = false
  package private(set) var punchedByteCount: UInt64 = 0
  package private(set) var hasPunchedBeyondEnd = false
  package private(set) var allocatedByteCount: UInt64 = 0
  package private(set) var hasAllocatedBeyondEnd = false
  package private(set) var writtenByteCount = 0
  package private(set) var readByteCount = 0

  private var random: SplitMix64
  private var inodes: [Int: Inode] = [:]
  private var names: [String: Int] = [:]
  private var durableNames: [String: Int] = [:]
  private var changes: [Change] = []
  private var descriptors: [Int32: Int] = [:]
  private var nextDescriptor: Int32 = 100
  private var nextInode = 1
  private static let folder = 0

  private struct Inode {
    var bytes = ZeroExtendedBytes()
    var durable = ZeroExtendedBytes()
    /// Versions of sectors since the last sync, oldest first.
    var versions: [Int: [[UInt8]]] = [:]
    var lock: Int32?
  }

  private struct Change {
    var folder: String
    var set: [(String, Int?)]
  }

  package init(_ random: SplitMix64 = SplitMix64(state: 1)) {
    self.random = random
    names["/"] = Self.folder
    durableNames["/"] = Self.folder
  }

  // MARK: For tests

  /// The process ends, and its descriptors are closed. The page cache stays.
  package func killProcess() {
    for descriptor in descriptors.keys { release(descriptor) }
    descriptors = [:]
    (isDead, dies) = (false, nil)
    (faults, lasting) = ([:], [:])
  }

  /// The power fails and returns.
  package func cutPower() {
    killProcess()
    for change in changes.prefix(Int.random(in: 0...changes.count, using: &random)) {
      Self.apply(change, to: &durableNames)
    }
    changes = []
    names = durableNames.filter { name, _ in
      // Without its folder, a file cannot be reached.
      name == "/" || durableNames[SpoolFolder.folder(of: name)] != nil
    }
    durableNames = names
    for number in inodes.keys.sorted() {
      guard var inode = inodes.removeValue(forKey: number) else { continue }
      for (sector, versions) in inode.versions.sorted(by: { $0.key < $1.key }) {
        let choice = Int.random(in: 0...versions.count, using: &random)
        if choice > 0 { Self.put(versions[choice - 1], sector, into: &inode.durable) }
      }
      inode.versions = [:]
      inode.bytes = inode.durable
      inodes[number] = inode
    }
  }

  /// Passes a file's bytes, for inspection or damage.
  package func withFile<Result>(_ path: String, _ body: (inout [UInt8]) -> Result) -> Result? {
    guard let number = names[path], number != Self.folder, var inode = inodes.removeValue(forKey: number) else {
      return nil
    }
    defer { inodes[number] = inode }
    var bytes = inode.bytes.all
    let result = body(&bytes)
    inode.bytes = ZeroExtendedBytes(bytes)
    inode.durable = inode.bytes
    return result
  }

  /// Creates a file.
  package func place(_ bytes: [UInt8], at path: String) {
    names[path] = nextInode
    durableNames[path] = nextInode
    inodes[nextInode] = Inode(bytes: ZeroExtendedBytes(bytes), durable: ZeroExtendedBytes(bytes))
    nextInode += 1
  }

  package func resetCalls() { calls = [:] }

  // MARK: For a spool

  package func open(_ path: String, flags: Int32, mode: UInt32) throws(SystemError) -> Int32 {
    try enter(.open)
    var number = names[path]
    if number != nil, flags & O_EXCL != 0 { throw SystemError(operation: "open", code: EEXIST) }
    if number == nil {
      guard flags & O_CREAT != 0, names[SpoolFolder.folder(of: path)] != nil else {
        throw SystemError(operation: "open", code: ENOENT)
      }
      number = nextInode
      inodes[nextInode] = Inode()
      change(Change(folder: SpoolFolder.folder(of: path), set: [(path, nextInode)]))
      nextInode += 1
    }
    descriptors[nextDescriptor] = number
    nextDescriptor += 1
    return nextDescriptor - 1
  }

  package func close(_ descriptor: Int32) {
    release(descriptor)
    descriptors[descriptor] = nil
  }

  package func write(_ pieces: [UnsafeRawBufferPointer], to descriptor: Int32, at offset: UInt64) throws(SystemError)
    -> Int
  {
    let fault = try enter(.write)
    let bytes = pieces.flatMap { Array($0) }
    var count = bytes.count
    if fault == .short { count = Int.random(in: 1...max(1, bytes.count - 1), using: &random) }
    if fault == .nothing { count = 0 }
    if fault == .death {
      // The kernel checks for a fatal signal before each page.
      let pages = (Int(offset) + count - 1) / 4096 - Int(offset) / 4096
      let end = (Int(offset) / 4096 + Int.random(in: 0...pages, using: &random)) * 4096
      count = max(0, min(count, end - Int(offset)))
    }
    writtenByteCount += count
    let number = try inode(descriptor)
    store(bytes[..<count], in: number, at: Int(offset))
    if fault == .death { throw SystemError(operation: "write", code: EIO) }
    return count
  }

  package func read(_ descriptor: Int32, into buffer: UnsafeMutableRawBufferPointer, at offset: UInt64)
    throws(SystemError)
    -> Int
  {
    let fault = try enter(.read)
    let bytes = inodes[try inode(descriptor)]?.bytes ?? ZeroExtendedBytes()
    guard offset < UInt64(bytes.count) else { return 0 }
    var count = min(buffer.count, bytes.count - Int(offset))
    if fault == .short { count = Int.random(in: 1...max(1, count - 1), using: &random) }
    readByteCount += count
    buffer.copyBytes(from: bytes[Int(offset)..<Int(offset) + count])
    return count
  }

  package func synchronizeData(_ descriptor: Int32) throws(SystemError) {
    let number = try inode(descriptor)
    do throws(SystemError) { try enter(.synchronizeData) } catch {
      if !isDead, error.code != EINTR { dropPages(of: number) }
      throw error
    }
    guard var inode = inodes.removeValue(forKey: number) else { return }
    for (sector, versions) in inode.versions { Self.put(versions[versions.count - 1], sector, into: &inode.durable) }
    inode.durable.resize(to: inode.bytes.count)
    inode.versions = [:]
    inodes[number] = inode
  }

  package func synchronizeFolder(_ path: String) throws(SystemError) {
    try enter(.synchronizeFolder)
    guard names[path] == Self.folder else { throw SystemError(operation: "open", code: ENOENT) }
    for change in changes where change.folder == path { Self.apply(change, to: &durableNames) }
    changes.removeAll { $0.folder == path }
  }

  package func setSize(_ descriptor: Int32, to byteCount: UInt64) throws(SystemError) {
    try enter(.setSize)
    let number = try inode(descriptor)
    inodes[number]?.bytes.resize(to: Int(byteCount))
  }

  package func punchHole(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError) {
    try enter(.punchHole)
    if Int(offset + byteCount) > inodes[try inode(descriptor)]?.bytes.count ?? 0 { hasPunchedBeyondEnd = true }
    let number = try inode(descriptor)
    let end = offset + byteCount
    var position = offset
    // Only the data in the range, because most of a large file is a hole already.
    while position < end, let data = firstPage(number, from: position, isHole: false), data < end {
      position = min(end, (data / 4096 + 1) * 4096)
      store([UInt8](repeating: 0, count: Int(position - data))[...], in: number, at: Int(data))
    }
    punchedByteCount += byteCount
  }

  package func allocate(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError) {
    try enter(.allocate)
    if Int(offset + byteCount) > inodes[try inode(descriptor)]?.bytes.count ?? 0 { hasAllocatedBeyondEnd = true }
    allocatedByteCount += byteCount
  }

  package func rename(_ old: String, to new: String) throws(SystemError) {
    try enter(.rename)
    guard let number = names[old] else { throw SystemError(operation: "rename", code: ENOENT) }
    change(Change(folder: SpoolFolder.folder(of: new), set: [(old, nil), (new, number)]))
  }

  package func unlink(_ path: String) throws(SystemError) {
    try enter(.unlink)
    guard names[path] != nil else { throw SystemError(operation: "unlink", code: ENOENT) }
    change(Change(folder: SpoolFolder.folder(of: path), set: [(path, nil)]))
  }

  package func makeFolder(_ path: String, mode: UInt32) throws(SystemError) {
    try enter(.makeFolder)
    if names[path] != nil { throw SystemError(operation: "mkdir", code: EEXIST) }
    change(Change(folder: SpoolFolder.folder(of: path), set: [(path, Self.folder)]))
  }

  package func lock(_ descriptor: Int32) throws(SystemError) -> Bool {
    try enter(.lock)
    let number = try inode(descriptor)
    if let holder = inodes[number]?.lock, holder != descriptor { return false }
    inodes[number]?.lock = descriptor
    return true
  }

  package func isLocked(_ descriptor: Int32) throws(SystemError) -> Bool {
    try enter(.lock)
    let holder = inodes[try inode(descriptor)]?.lock
    return holder != nil && holder != descriptor
  }

  /// Unwritten ranges read as zeros, and whole pages of zeros are holes.
  package func nextData(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64? {
    try enter(.nextData)
    return firstPage(try inode(descriptor), from: offset, isHole: false)
  }

  package func nextHole(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64? {
    try enter(.nextHole)
    let number = try inode(descriptor)
    let size = UInt64(inodes[number]?.bytes.count ?? 0)
    return offset >= size ? nil : firstPage(number, from: offset, isHole: true) ?? size
  }

  private func firstPage(_ number: Int, from offset: UInt64, isHole: Bool) -> UInt64? {
    inodes[number]?.bytes.firstPage(of: 4096, from: Int(clamping: offset), isZero: isHole).map(UInt64.init)
  }

  package func status(_ descriptor: Int32) throws(SystemError) -> SpoolFileStatus {
    try enter(.status)
    let count = UInt64(inodes[try inode(descriptor)]?.bytes.count ?? 0)
    return SpoolFileStatus(byteCount: count, diskByteCount: count)
  }

  package func names(in folder: String) throws(SystemError) -> [String] {
    try enter(.names)
    return names.keys.filter { $0 != "/" && SpoolFolder.folder(of: $0) == folder }
      .map { String($0.dropFirst(folder == "/" ? 1 : folder.count + 1)) }.sorted()
  }

  // MARK: Implementation

  /// Counts a call, and fails it as requested. The caller handles a fault that is not an error.
  @discardableResult
  private func enter(_ operation: Operation) throws(SystemError) -> Fault? {
    if isDead { throw SystemError(operation: "dead", code: EIO) }
    callCount += 1
    calls[operation, default: 0] += 1
    var fault = faults[operation]?[calls[operation] ?? 0]
    if let dies, callCount >= dies { fault = .death }
    if let (from, code) = lasting[operation], calls[operation] ?? 0 >= from { fault = .error(code) }
    switch fault {
    case .error(let code): throw SystemError(operation: operation.rawValue, code: code)
    case .death:
      isDead = true
      if operation != .write { throw SystemError(operation: "death", code: EIO) }
      return .death
    case .short, .nothing, nil: return fault
    }
  }

  private func inode(_ descriptor: Int32) throws(SystemError) -> Int {
    guard let number = descriptors[descriptor] else { throw SystemError(operation: "use", code: EBADF) }
    return number
  }

  private func release(_ descriptor: Int32) {
    guard let number = descriptors[descriptor], inodes[number]?.lock == descriptor else { return }
    inodes[number]?.lock = nil
  }

  private func store(_ bytes: ArraySlice<UInt8>, in number: Int, at offset: Int) {
    guard !bytes.isEmpty, var inode = inodes.removeValue(forKey: number) else { return }
    defer { inodes[number] = inode }
    inode.bytes.replace(at: offset, with: bytes)
    for sector in offset / Self.sector...(offset + bytes.count - 1) / Self.sector {
      let end = min(inode.bytes.count, (sector + 1) * Self.sector)
      inode.versions[sector, default: []].append(inode.bytes[sector * Self.sector..<end])
    }
  }

  /// A failed fdatasync: each page was written, is only in the cache from now on, or is lost.
  private func dropPages(of number: Int) {
    guard var inode = inodes.removeValue(forKey: number) else { return }
    for page in Set(inode.versions.keys.map { $0 / 8 }).sorted() {
      let fate = Int.random(in: 0..<3, using: &random)
      for sector in page * 8..<page * 8 + 8 {
        guard let versions = inode.versions[sector] else { continue }
        if fate == 0 { Self.put(versions[versions.count - 1], sector, into: &inode.durable) }
        if fate == 1 {
          let start = sector * Self.sector
          for place in start..<min(start + Self.sector, inode.bytes.count) {
            inode.bytes[place] = inode.durable[place]
          }
        }
      }
    }
    inode.versions = [:]
    inodes[number] = inode
  }

  private func change(_ change: Change) {
    Self.apply(change, to: &names)
    changes.append(change)
  }

  private static func apply(_ change: Change, to names: inout [String: Int]) {
    for (name, number) in change.set { names[name] = number }
  }

  private static func put(_ bytes: [UInt8], _ sector: Int, into file: inout ZeroExtendedBytes) {
    file.replace(at: sector * Self.sector, with: bytes[...])
  }
}
