// The spool of one stream: the remains of earlier processes, and the stretch that this one captures.

internal import EventLoops
public import Spool
package import StreamBuffers

/// Keeps a stream on disk until the server has stored it. One process at a time uses the spool of a stream.
///
/// The bytes that one process has captured are a *stretch*. A process that was killed leaves its stretch behind: in a
/// file of the spool, and, for the last moments, in a file system in memory. The next process finds both. Any thread
/// may use it.
public final class StreamSpool: Sendable {
  private let folder: SpoolFolder
  private let settings: SpoolSettings
  private let thread: SpoolThread
  private let report: @Sendable (SpoolEvent) -> Void
  /// The names of the stretches that earlier processes have left, oldest first.
  package let backlog: [String]
  /// The descriptions of those without a file.
  private let withoutFile: [String: String]

  /// Opens the spool of a stream. The stretches of earlier processes are recovered afterwards, on a thread of the
  /// spool. If the disk has no space for the stream's folder, the spool makes it together with the first file.
  ///
  /// - Parameters:
  ///   - directory: is created if it does not exist.
  ///   - stream: 1–64 of `A–Z a–z 0–9 . _ -`.
  ///   - settings: how much is kept, and how long.
  ///   - report: called on any thread.
  /// - Throws: ``Spool/SpoolError``, e.g. while another process uses the spool of this stream.
  public convenience init(
    directory: String, stream: String, settings: SpoolSettings, report: @escaping @Sendable (SpoolEvent) -> Void
  ) throws(SpoolError) {
    try self.init(directory: directory, stream: stream, settings: settings, disk: .system, report: report)
  }

  /// The same with a disk that the caller provides.
  package init(
    directory: String, stream: String, settings: SpoolSettings, disk: any SpoolDisk,
    report: @escaping @Sendable (SpoolEvent) -> Void
  ) throws(SpoolError) {
    let folder = try SpoolFolder(directory: directory, stream: stream, disk: disk, mayLackSpace: true)
    self.folder = folder
    self.settings = settings
    self.report = report
    do throws(SystemError) {
      thread = try SpoolThread(settings, report: report)
    } catch {
      throw SpoolError(.system(error), path: directory)
    }
    let stretches = try folder.stretches().map { LeftStretch(path: $0, folder) }
    let names = Set(stretches.map(\.name))
    // The stretches that the disk had no space for.
    let others = SharedStretch.withoutFile(in: folder.path, besides: names)
    withoutFile = Dictionary(others.map { ($0.identity.fileName, $0.text) }) { first, _ in first }
    // A name begins with the time, whose number of digits stays the same for centuries.
    let left = (stretches + others.map { LeftStretch($0, folder) }).sorted { $0.name < $1.name }
    backlog = left.map(\.name)
    thread.loop.execute { [thread] in thread.begin(with: left) }
  }

  deinit { thread.stop() }

  /// How many bytes the file of a stretch has room for besides ``SpoolSettings/limit``: what a killed process leaves in
  /// a buffer of that size.
  package static func sizeBesidesLimit(buffer: Int) -> UInt64 { min(UInt64(clamping: buffer), 1 << 52) + 1 << 20 }

  /// The folder of the stream's files.
  public var path: String { folder.path }

  /// The descriptions of the oldest stretches of ``backlog``, as far as they are readable.
  package var descriptions: some Sequence<String> {
    backlog.lazy.compactMap { [path, folder, withoutFile] name in
      withoutFile[name] ?? (try? SpoolFile.open("\(path)/\(name)", access: .readOnly, folder: folder))?.description
    }
  }

  /// Opens a stretch of ``backlog`` for the stream that will send it.
  ///
  /// - Parameter done: called on the spool's thread.
  package func open(_ name: String, then done: @escaping @Sendable (OpenedStretch) -> Void) {
    thread.take(name, then: done)
  }

  /// Begins a stretch. If the disk has no space for its file, it begins in memory, and the spool makes the file later.
  ///
  /// - Parameters:
  ///   - description: at most 15 KiB, for the process that may have to resume it.
  ///   - capacity: the size of the circular buffer in memory, in bytes.
  ///   - overflow: what happens if neither the buffer nor the spool has space.
  package func begin(
    description: String, capacity: Int, overflow: CircularBuffer.Overflow
  ) throws(SpoolError) -> SpooledBuffer {
    let identity = StretchIdentity()
    let kept = thread.capacity(capacity)
    let makeFile: @Sendable () throws(SpoolError) -> SpoolFile = { [folder] () throws(SpoolError) in
      try SpoolFile.create(
        in: folder, identity, description: description, capacity: kept, reach: SpoolThread.reach(of: kept))
    }
    let shared = SharedStretch(id: identity.id)
    let file = try makeFileNow(makeFile)
    let stretch = thread.makeStretch(kept: 0..<0, released: 0, capacity: kept)
    var buffer = CircularBuffer.Settings(capacity: capacity)
    (buffer.overflow, buffer.allowsPauses, buffer.hasCopier) = (overflow, true, true)
    (buffer.backing, buffer.path) = (stretch, shared.bufferPath)
    if file == nil {
      buffer.label = SharedStretch.label(created: identity.created, folder: SpoolFolder.resolved(folder.path))
    }
    do throws(SystemError) {
      let ends: CircularBuffer.CopiedEnds
      do throws(SystemError) {
        ends = try CircularBuffer.makeCopied(buffer)
        stretch.keepsWords(in: ends.copier.note)
        if file == nil { leave(description, identity, shared) }
      } catch {
        report(.withoutSharedMemory(error))
        buffer.path = nil
        ends = try CircularBuffer.makeCopied(buffer)
      }
      // Before the first byte, because the thread may be busy with the backlog for a while. After the buffer was made,
      // so that a process that is killed between the two has lost nothing. If this fails, the first copy does it.
      try? file?.noteMemory(isNeeded: true)
      let isEager = buffer.path == nil
      let writer = StretchWriter(
        file: file, stretch: stretch, copier: ends.copier, shared: shared, patience: settings.readingPatience,
        makeFile: makeFile)
      thread.loop.execute { [thread] in thread.add(writer, isEager: isEager) }
      return SpooledBuffer(ends, stretch: stretch)
    } catch {
      try? file?.remove()
      shared.remove()
      throw SpoolError(.system(error), path: file?.path ?? folder.path)
    }
  }

  /// Nil for a reason that may pass, such as a full disk. Other errors concern the configured directory.
  private func makeFileNow(_ makeFile: () throws(SpoolError) -> SpoolFile) throws(SpoolError) -> SpoolFile? {
    do throws(SpoolError) {
      return try makeFile()
    } catch {
      guard error.mayPass else { throw error }
      return nil
    }
  }

  /// Makes a stretch without a file visible to the next process.
  private func leave(_ description: String, _ identity: StretchIdentity, _ shared: SharedStretch) {
    let folder = SpoolFolder.resolved(folder.path)
    do throws(SystemError) {
      try shared.write(
        SharedStretch.Description(identity: identity, folder: folder, text: description, hasBuffer: true))
    } catch {
      report(.withoutSharedMemory(error))
    }
  }

  /// The stream of a stretch is over, and its source was stopped. If the source has bytes left, they are awaited for
  /// ``SpoolSettings/sourcePatience``.
  ///
  /// - Parameters:
  ///   - isDelivered: whether the server has stored everything available, so that none of the stretch is kept.
  ///   - done: called on the spool's thread when the disk has stored that, with the number of bytes that it refused.
  ///     These exist only in memory.
  package func end(
    _ stretch: SpooledStretch, isDelivered: Bool, then done: @escaping @Sendable (UInt64) -> Void
  ) {
    thread.end(stretch, isDelivered: isDelivered, then: done)
  }
}

extension SpoolError {
  /// Whether the disk is full or broken, or the system lacks a resource. Both may pass without a change of the
  /// configuration.
  var mayPass: Bool {
    guard case .system(let error) = cause else { return false }
    return error.isTemporary || isLackOfSpace
  }
}
