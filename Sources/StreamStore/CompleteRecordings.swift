// Finds the complete recording of a stream, whatever its extension: the requester's idea of the type decides nothing.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import StreamServing

/// The complete recordings of a directory. Any thread.
///
/// Most have one of a few extensions, and the file system is asked for these: it always knows what is there. The others
/// are listed once, at the start, in slices; from then on each is added when it gets its name.
final class CompleteRecordings: Sendable {
  /// For how long the start of a server waits for the list; it is continued in the background then.
  static let patience = Duration.milliseconds(100)
  /// How many names are read in one slice.
  private static let slice = 1_000

  private struct List {
    /// By the file's name without extension.
    private(set) var extensions: [String: String] = [:]
    /// The keys of these, in any order, and which of them is looked at next.
    private var bases: [String] = []
    private var next = 0
    var isComplete = false
    /// Why it cannot be made.
    var failure: SystemError?

    mutating func insert(_ base: String, _ finalExtension: String) {
      if extensions.updateValue(finalExtension, forKey: base) == nil { bases.append(base) }
    }

    /// One after the other, again and again; nil if there is none.
    mutating func takeTurn() -> (index: Int, base: String, finalExtension: String)? {
      guard !bases.isEmpty else { return nil }
      next = (next + 1) % bases.count
      return (next, bases[next], extensions[bases[next]] ?? "")
    }

    mutating func remove(_ base: String, at index: Int) {
      // Others may have changed it meanwhile.
      guard bases.indices.contains(index), bases[index] == base else { return }
      extensions[base] = nil
      bases.swapAt(index, bases.count - 1)
      bases.removeLast()
    }
  }

  private let directory: Int32
  private let uncommon = Lock(List())

  /// - Parameter directory: of the recordings; stays open for longer than this.
  init(in directory: Int32) { self.directory = directory }

  /// The complete recording of that stream; nil if there is none.
  ///
  /// - Throws: ``SystemError`` if nobody can tell, because the list of the others is not made yet, or cannot be made.
  func find(_ name: StreamName) throws(SystemError) -> StreamName? {
    // The requester's extension is one more to ask for: a recording that somebody restored is found by it, too.
    for candidate in [name.finalExtension] + StreamName.commonExtensions {
      let candidate = name.withExtension(candidate)
      if isThere(candidate.final) { return candidate }
    }
    let list = uncommon.withLock {
      (listed: $0.extensions[name.fileBase], isComplete: $0.isComplete, failure: $0.failure)
    }
    if let listed = list.listed {
      let candidate = name.withExtension(listed)
      if isThere(candidate.final) { return candidate }
    }
    if let failure = list.failure { throw failure }
    guard list.isComplete else {
      throw SystemError(operation: "look for a recording before all of them are listed", code: EAGAIN)
    }
    return nil
  }

  private func isThere(_ file: String) -> Bool { faccessat(directory, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0 }

  /// A recording has got its name.
  func add(_ name: StreamName) {
    guard !StreamName.commonExtensions.contains(name.finalExtension) else { return }
    uncommon.withLock { $0.insert(name.fileBase, name.finalExtension) }
    // Operators remove files: with each new name, two others are looked at, so that the list grows no longer than what
    // is there.
    for _ in 0..<2 {
      guard let (index, base, finalExtension) = uncommon.withLock({ $0.takeTurn() }),
        !isThere(base + finalExtension)
      else { continue }
      uncommon.withLock { $0.remove(base, at: index) }
    }
  }

  /// How many names are in the list.
  var listedCount: Int { uncommon.withLock { $0.extensions.count } }

  // MARK: The list

  /// Lists the directory: what takes longer than the patience of a start is done by the worker.
  ///
  /// - Parameter growing: told of each file of a growing stream, and the stream's name.
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

  private func scanOn(
    _ names: DirectoryNames, _ worker: BackgroundWorker, _ growing: @escaping @Sendable (String, String) -> Void
  ) {
    // Streams that may be in the list are refused until it is complete: it goes before all long work.
    worker.execute { [self] in
      do throws(SystemError) {
        if try !scanSlice(names, growing) { scanOn(names, worker, growing) }
      } catch {
        uncommon.withLock { $0.failure = error }
      }
    }
  }

  /// Whether that was the last slice.
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
