// The spool of one stream: what earlier processes left, and what this one captures.

internal import EventLoops
public import Spool
package import StreamBuffers

/// Keeps a stream on disk until the server has it. One process at a time uses the spool of a stream.
///
/// What one process has captured is a *stretch*. A process that was killed leaves its stretch behind: in a file of the
/// spool, and, for the last moments, in a file system in memory. The next process finds both. Any thread may use it.
public final class StreamSpool: Sendable {
  private let folder: SpoolFolder
  private let settings: SpoolSettings
  private let thread: SpoolThread
  private let report: @Sendable (SpoolEvent) -> Void
  /// What earlier processes have left, oldest first.
  package let backlog: [SpooledBacklog]

  /// Opens the spool of a stream, and recovers what earlier processes have left in it.
  ///
  /// - Parameters:
  ///   - directory: is created if it does not exist.
  ///   - stream: 1–64 of `A–Z a–z 0–9 . _ -`.
  ///   - report: called on any thread.
  /// - Throws: ``SpoolError``, e.g. while another process uses the spool of this stream.
  public init(
    directory: String, stream: String, settings: SpoolSettings, report: @escaping @Sendable (SpoolEvent) -> Void
  ) throws(SpoolError) {
    folder = try SpoolFolder(directory: directory, stream: stream)
    self.settings = settings
    self.report = report
    do throws(SystemError) {
      thread = try SpoolThread(settings, report: report)
    } catch {
      throw SpoolError(.system(error), path: directory)
    }
    var backlog: [SpooledBacklog] = []
    for path in try folder.stretches() {
      do throws(SpoolError) {
        if let stretch = try Self.recover(path, folder, thread, report) { backlog.append(stretch) }
      } catch {
        // It stays as it is, for somebody to look at. The others need not wait for that.
        report(.unreadable(error))
      }
    }
    self.backlog = backlog
  }

  deinit { thread.stop() }

  /// The folder of the stream's files.
  public var path: String { folder.path }

  private static func recover(
    _ path: String, _ folder: SpoolFolder, _ thread: SpoolThread, _ report: @Sendable (SpoolEvent) -> Void
  ) throws(SpoolError) -> SpooledBacklog? {
    let file = try SpoolFile.open(path, folder: folder)
    for damage in file.damage { report(.damaged(stretch: file.name, damage)) }
    let shared = SharedStretch(id: file.id)
    var (resumption, pauses) = try shared.merge(into: file)
    // What is left of the pauses is counted anew.
    resumption.passedPauses = 0
    // Where the server has everything, it may still have to be told that nothing follows.
    guard file.oldest < file.head || !resumption.text.isEmpty else {
      try file.remove()
      shared.remove()
      return nil
    }
    shared.remove()
    let stretch = thread.makeStretch(file, resumption: resumption)
    do throws(SystemError) {
      let ends = try CircularBuffer.makeFinished(head: file.head, pauses: pauses, backing: stretch)
      let writer = StretchWriter(file: file, stretch: stretch, copier: nil, waker: ends.waker)
      thread.loop.execute { thread.add(writer) }
      return SpooledBacklog(
        name: file.name, created: file.created, description: file.description, stretch: stretch,
        kept: file.oldest..<file.head, released: file.released,
        resumption: resumption, ends: ends)
    } catch {
      throw SpoolError(.system(error), path: path)
    }
  }

  /// Begins a stretch.
  ///
  /// - Parameters:
  ///   - description: for the process that may have to go on with it, at most 15 KiB.
  ///   - capacity: of the circular buffer in memory, in bytes.
  ///   - overflow: what happens when neither the buffer nor the spool has room.
  package func begin(
    description: String, capacity: Int, overflow: CircularBuffer.Overflow
  ) throws(SpoolError) -> SpooledBuffer {
    let file = try SpoolFile.create(in: folder, description: description, capacity: ringSize(capacity))
    let shared = SharedStretch(id: file.id)
    let stretch = thread.makeStretch(file, shared: shared)
    var buffer = CircularBuffer.Settings(capacity: capacity)
    (buffer.overflow, buffer.allowsPauses, buffer.hasCopier) = (overflow, true, true)
    (buffer.backing, buffer.path) = (stretch, shared.bufferPath)
    do throws(SystemError) {
      let ends: CircularBuffer.CopiedEnds
      do throws(SystemError) {
        ends = try CircularBuffer.makeCopied(buffer)
      } catch {
        report(.withoutSharedMemory(error))
        buffer.path = nil
        ends = try CircularBuffer.makeCopied(buffer)
      }
      let isEager = buffer.path == nil
      let writer = StretchWriter(
        file: file, stretch: stretch, copier: ends.copier, waker: ends.copier.waker, shared: shared)
      thread.loop.execute { [thread] in thread.add(writer, isEager: isEager) }
      return SpooledBuffer(ends, stretch: stretch)
    } catch {
      try? file.remove()
      throw SpoolError(.system(error), path: file.path)
    }
  }

  /// The file is sparse, and the limit holds all the same: with room for what a killed process leaves in memory.
  private func ringSize(_ buffer: Int) -> UInt64 {
    let (sum, overflows) = settings.limit.addingReportingOverflow(UInt64(buffer) + 1 << 20)
    return overflows ? settings.limit : sum
  }

  /// The stream of a stretch is over.
  ///
  /// - Parameters:
  ///   - isDelivered: whether the server has everything that can be had; nothing of the stretch is kept then.
  ///   - done: called on the spool's thread when the disk has that.
  package func end(_ stretch: SpooledStretch, isDelivered: Bool, then done: @escaping @Sendable () -> Void) {
    thread.end(stretch, isDelivered: isDelivered, then: done)
  }
}

/// A stretch that an earlier process has captured.
package final class SpooledBacklog: Sendable {
  /// The name of its file.
  package let name: String
  /// When its process began, in milliseconds since 1970.
  package let created: Int64
  /// As it was created with.
  package let description: String
  package let stretch: SpooledStretch
  /// The positions that are kept.
  package let kept: Range<UInt64>
  /// The server has acknowledged everything before it.
  package let released: UInt64
  /// How to go on with it.
  package let resumption: SpooledStretch.Resumption
  private let ends: Lock<CircularBuffer.FinishedEnds?>

  init(
    name: String, created: Int64, description: String, stretch: SpooledStretch, kept: Range<UInt64>, released: UInt64,
    resumption: SpooledStretch.Resumption, ends: consuming sending CircularBuffer.FinishedEnds
  ) {
    (self.name, self.created) = (name, created)
    self.description = description
    self.stretch = stretch
    (self.kept, self.released) = (kept, released)
    self.resumption = resumption
    self.ends = Lock(consume ends)
  }

  /// Its end, for the stream that sends the bytes; once.
  package func takeEnds() -> CircularBuffer.FinishedEnds? { ends.withLock { $0.take() } }
}

/// The circular buffer of a stream that begins.
package final class SpooledBuffer: Sendable {
  package let stretch: SpooledStretch
  private let ends: Lock<CircularBuffer.CopiedEnds?>

  init(_ ends: consuming sending CircularBuffer.CopiedEnds, stretch: SpooledStretch) {
    self.ends = Lock(consume ends)
    self.stretch = stretch
  }

  /// Its ends; once.
  package func takeEnds() -> CircularBuffer.CopiedEnds? { ends.withLock { $0.take() } }
}
