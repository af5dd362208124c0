// Finds the complete recording of a stream, whatever its extension. The type in a request does not matter.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import StreamServing

/// The complete recordings of a directory. Any thread.
///
/// Most have one of a few extensions. For these the file system is asked, which always has the current state. The
/// others are listed in slices once, at the start. From then on each is added when it gets its name.
final class CompleteRecordings: Sendable {
  /// How long the start of a server waits for the list. After that, the list is continued in the background.
  static let patience = Duration.milliseconds(100)
  /// How many names are read in one slice.
  private static let slice = 1_000

  private struct List {
    /// The extensions by the file's name without extension.
    private(set) var extensions: [String: String] = [:]
    /// The keys of `extensions` in any order, and which of them is examined next.
    private var bases: [String] = []
    private var next = 0
    var isComplete = false
    /// Why the list could not be made.
    var failure: SystemError?

    mutating func insert(_ base: String, _ finalExtension: String) {
      if extensions.updateValue(finalExtension, forKey: base) == nil { bases.append(base) }
    }

    /// Returns one recording after another, repeatedly; nil if there is none.
    mutating func takeTurn() -> (index: Int, base: String, finalExtension: String)? {
      guard !bases.isEmpty else { return nil }
      next = (next + 1) % bases.count
      return (next, bases[next], extensions[bases[next]] ?? "")
    }

    mutating func remove(_ base: String, at index: Int) {
      // Others may have changed the list meanwhile.
      guard bases.indices.contains(index), bases[index] == base else { return }
      extensions[base] = nil
      bases.swapAt(index, bases.count - 1)
      bases.removeLast()
    }
  }

  private let directory: Int32
  private let uncommon = Lock(List())

  /// - Parameter directory: the directory of the recordings, which stays open for longer than this object.
  init(in directory: Int32) { self.directory = directory }

  /// The complete recording of that stream; nil if there is none.
  ///
  /// - Throws: ``SystemError`` if this is unknown, because the disk does not answer, or the list is not complete yet or
  ///   could not be made; ``SystemError/isSpecialFile`` if something else has the name of such a recording.
  func find(_ name: StreamName) throws(SystemError) -> StreamName? {
    // This comes first, because the list may become complete meanwhile.
    let list = uncommon.withLock { (isComplete: $0.isComplete, failure: $0.failure) }
    if let known = try findKnown(name) { return known }
    if let failure = list.failure { throw failure }
    guard list.isComplete else {
      throw SystemError(operation: "look for a recording before all of them are listed", code: EAGAIN)
    }
    return nil
  }

  /// Like ``find(_:)``, among the recordings that are known, whether or not the list is complete.
  ///
  /// - Throws: ``SystemError`` if the disk does not answer; ``SystemError/isSpecialFile`` if something else has the
  ///   name of such a recording.
  func findKnown(_ name: StreamName) throws(SystemError) -> StreamName? {
    // The extension from the request is tried too. It finds a recording that an operator has restored.
    for candidate in [name.finalExtension] + StreamName.commonExtensions {
      let candidate = name.withExtension(candidate)
      if try exists(candidate.final) { return candidate }
    }
    guard let listed = uncommon.withLock({ $0.extensions[name.fileBase] }) else { return nil }
    let candidate = name.withExtension(listed)
    return try exists(candidate.final) ? candidate : nil
  }

  private func exists(_ file: String) throws(SystemError) -> Bool {
    guard try existsInDirectory(file, directory) else { return false }
    try RegularFile.check(file, in: directory)
    return true
  }

  private func isThere(_ file: String) -> Bool { isInDirectory(file, directory) }

  /// Adds a recording that has got its name.
  func add(_ name: StreamName) {
    guard !StreamName.commonExtensions.contains(name.finalExtension) else { return }
    uncommon.withLock { $0.insert(name.fileBase, name.finalExtension) }
    // Operators remove files. With each new name, two others are checked, so the list does not grow beyond the existing
    // recordings.
    for _ in 0..<2 {
      guard let (index, base, finalExtension) = uncommon.withLock({ $0.takeTurn() }),
        !isThere(base + finalExtension)
      else { continue }
      uncommon.withLock { $0.remove(base, at: index) }
    }
  }

  /// How many names the list has.
  var listedCount: Int { uncommon.withLock { $0.extensions.count } }

  // MARK: The list

  /// Lists the directory. If this exceeds the patience of a start, the worker does the rest.
  ///
  /// - Parameter growing: called with each file of a growing stream, and the stream's name.
  func scan(
    on worker: BackgroundWorker, patience: Duration = patience,
    growing: @escaping @Sendable (_ file: String, _ stream: String) -> Void
  ) throws(SystemError) {
    let names = try DirectoryNames(of: directory)
    let end = MonotonicInstant.now + patience
    while MonotonicInstant.now < end {
      if try scanSlice(names, growing) { return }
    }
    scanOn(names, worker, growing)
  }

  /// Lists the directory again, in the background, if that has failed before.
  func scanAgain(
    on worker: BackgroundWorker, growing: @escaping @Sendable (_ file: String, _ stream: String) -> Void
  ) {
    let hasFailed = uncommon.withLock { list in
      defer { list.failure = nil }
      return list.failure != nil
    }
    guard hasFailed else { return }
    do throws(SystemError) {
      try scan(on: worker, patience: .zero, growing: growing)
    } catch {
      fail(error)
    }
  }

  private func fail(_ error: SystemError) { uncommon.withLock { $0.failure = error } }

  private func scanOn(
    _ names: DirectoryNames, _ worker: BackgroundWorker, _ growing: @escaping @Sendable (String, String) -> Void
  ) {
    // Streams that may be in the list are refused until it is complete, so it has priority over long work.
    worker.execute { [self] in
      do throws(SystemError) {
        if try !scanSlice(names, growing) { scanOn(names, worker, growing) }
      } catch {
        fail(error)
      }
    }
  }

  /// Returns whether that was the last slice.
  private func scanSlice(_ names: DirectoryNames, _ growing: (String, String) -> Void) throws(SystemError) -> Bool {
    let slice = try names.next(Self.slice)
    var found: [(base: String, finalExtension: String)] = []
    for name in slice {
      guard let (base, finalExtension) = StreamName.parts(ofFile: name[...]) else { continue }
      let text = String(finalExtension)
      if text == ".part" { growing(name, String(base)) }
      if [".part", ".gaps", ".sidecar"].contains(text) || StreamName.commonExtensions.contains(text) { continue }
      found.append((String(base), text))
    }
    uncommon.withLock { list in
      for (base, finalExtension) in found { list.insert(base, finalExtension) }
      if slice.isEmpty { list.isComplete = true }
    }
    return slice.isEmpty
  }
}
