// The memory of a circular buffer: the words, and the bytes, which are mapped twice in a row. If its file has a name,
// the file begins with a page for a copy of the words, and with the note.

internal import CLinux
internal import EventLoops
internal import Glibc

/// A file in memory and its mappings, until it is released.
final class CircularMemory: @unchecked Sendable {
  /// The words of this process. No other program can change them.
  let words: UnsafeMutablePointer<CircularWords>
  /// The words in the file, for another process; nil if the file has no name. Each change of a word that such a process
  /// needs is written here before it is made. This process never relies on them, because others can overwrite them.
  let published: UnsafeMutablePointer<CircularWords>?
  /// The consumer's note for another process.
  let note: CircularNote
  /// The first of two copies of `capacity` bytes.
  let base: UnsafeMutableRawPointer
  /// In bytes.
  let capacity: Int
  /// The length of the published words and the note together, in bytes. Always whole pages; 0 without a name.
  private let headLength: Int

  /// - Parameters:
  ///   - capacity: in bytes, whole pages.
  ///   - start: the offset at which the buffer begins.
  ///   - pausedBefore: the total length of all pauses before it.
  ///   - label: for another process.
  ///   - path: where other processes find the buffer's file, in a file system in memory; nil for nowhere. With a path,
  ///     all memory is allocated at once, because writing to a mapping of a full file system ends the process.
  init(
    capacity: Int, startingAt start: UInt64, pausedBefore: UInt64, label: CircularBuffer.Label, path: String?
  ) throws(SystemError) {
    self.capacity = capacity
    headLength = path == nil ? 0 : Self.headLength
    let file = try Self.open(path)
    var isComplete = false
    defer {
      close(file)
      if !isComplete, let path { unlink(path) }
    }
    let size = headLength + capacity
    let reserving = "reserving \(capacity) bytes for a circular buffer"
    if path != nil {
      var code: Int32
      repeat { code = posix_fallocate(file, 0, size) } while code == EINTR
      guard code == 0 else { throw SystemError(operation: reserving, code: code) }
    } else {
      try retryingInterrupts(reserving) { ftruncate(file, size) }
    }
    var first: UnsafeMutableRawPointer?
    if path != nil {
      first = mmap(nil, headLength, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
      if first == MAP_FAILED { throw .last("mapping a circular buffer") }
    }
    do throws(SystemError) {
      base = try Self.mapTwice(file, capacity, offset: headLength)
    } catch {
      if let first { munmap(first, headLength) }
      throw error
    }
    words = .allocate(capacity: 1)
    words.initialize(to: CircularWords(capacity: capacity, startingAt: start, pausedBefore: pausedBefore))
    published = first?.bindMemory(to: CircularWords.self, capacity: 1)
    if let published {
      published.initialize(to: CircularWords(capacity: capacity, startingAt: start, pausedBefore: pausedBefore))
      published.pointee.label = label
    }
    note = CircularNote(words: words, published: published)
    isComplete = true
    addToSharedMappings()
  }

  /// Maps the file that another process has left; nil if it is not a buffer, or has another version.
  ///
  /// - Throws: ``SystemError`` when it cannot be read; `ENODATA` if another program has truncated it.
  init?(reading path: String) throws(SystemError) {
    headLength = Self.headLength
    let page = sysconf(Int32(_SC_PAGESIZE))
    let file = try retryingInterrupts("opening \(path)") { Glibc.open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW) }
    defer { close(file) }
    var status = stat()
    try retryingInterrupts("reading \(path)") { fstat(file, &status) }
    let size = Int(status.st_size)
    guard status.st_mode & S_IFMT == S_IFREG, size <= Int.max / 4 else { return nil }
    let truncated = SystemError(operation: "reading \(path)", code: ENODATA)
    guard size > headLength, size % page == 0 else { throw truncated }
    capacity = size - headLength
    guard let first = mmap(nil, headLength, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), first != MAP_FAILED else {
      throw .last("mapping \(path)")
    }
    let left = first.assumingMemoryBound(to: CircularWords.self)
    guard left.pointee.layout == CircularWords.currentLayout, left.pointee.capacity == UInt64(capacity) else {
      let isTruncated = left.pointee.layout == CircularWords.currentLayout && left.pointee.capacity > UInt64(capacity)
      munmap(first, headLength)
      if isTruncated { throw truncated }
      return nil
    }
    guard let head = left.pointee.leftHead else {
      munmap(first, headLength)
      return nil
    }
    do throws(SystemError) {
      base = try Self.mapTwice(file, capacity, offset: headLength)
    } catch {
      munmap(first, headLength)
      throw error
    }
    words = .allocate(capacity: 1)
    words.initialize(to: CircularWords(copying: left, head: head))
    published = left
    note = CircularNote(words: words, published: left)
    addToSharedMappings()
  }

  /// Others can truncate a file that has a name.
  private func addToSharedMappings() {
    guard let published else { return }
    SharedMappings.add(UnsafeMutableRawPointer(published), headLength)
    SharedMappings.add(base, 2 * capacity)
  }

  /// A page for the words, and whole pages for the note.
  private static var headLength: Int {
    let page = sysconf(Int32(_SC_PAGESIZE))
    return (CircularNote.offset + CircularNote.length + page - 1) / page * page
  }

  deinit {
    if let published {
      SharedMappings.remove(UnsafeMutableRawPointer(published))
      SharedMappings.remove(base)
      munmap(published, headLength)
    }
    munmap(base, 2 * capacity)
    words.deinitialize(count: 1)
    words.deallocate()
  }

  /// The pauses of the stream.
  var pauses: PauseRing { PauseRing(words: words, published: published) }

  private static func open(_ path: String?) throws(SystemError) -> Int32 {
    guard let path else {
      return try retryingInterrupts("memfd_create") { memfd_create("sluice-circular-buffer", SLUICE_MFD_CLOEXEC) }
    }
    return try retryingInterrupts("creating \(path)") {
      Glibc.open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0o600)
    }
  }

  /// The same `capacity` bytes at two addresses in a row, so that no span ever wraps.
  private static func mapTwice(
    _ file: Int32, _ capacity: Int, offset: Int
  ) throws(SystemError) -> UnsafeMutableRawPointer {
    let mapping = "mapping \(capacity) bytes for a circular buffer"
    guard AddressSpace.hasRoom(for: 2 * capacity) else { throw SystemError(operation: mapping, code: ENOMEM) }
    guard let reserved = mmap(nil, 2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), reserved != MAP_FAILED
    else {
      throw .last(mapping)
    }
    for half in [reserved, reserved + capacity] {
      if mmap(half, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, offset) == MAP_FAILED {
        let error = SystemError.last(mapping)
        munmap(reserved, 2 * capacity)
        throw error
      }
    }
    return reserved
  }
}
