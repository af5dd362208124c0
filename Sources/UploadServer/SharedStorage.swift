// The storage of the loops of a server: the shared parts, and the part of each loop.

internal import DiskFiles
internal import EventLoops
internal import ResumableServing
internal import StreamServing
internal import StreamStore
internal import Synchronization

/// The directory and the limits of a server, whatever the number of its loops. Any thread.
final class SharedStorage: Sendable {
  /// What one loop stores with.
  struct Parts {
    var streams: any StreamStore
    var records: any UploadRecords
    /// nil where the bytes of streams are not counted.
    var accounts: StreamAccounts?
    var worker: BackgroundWorker
    var durability: Durability
    /// Of the records of uploads that are over.
    var finishedLimits: FinishedUploads.Limits
  }

  private static let finishedCountWhenDiscarding = 1000

  let usage: UploadUsage
  let openFiles = OpenFiles()
  /// The log that is shared with other servers, where there is one.
  let brokers: BrokerStorage?
  private let configuration: UploadServer.Configuration
  /// The directory, which is locked until the end; nil where nothing is stored.
  private let files: FileStore?
  /// nil where nothing can be downloaded.
  private let downloads: DownloadCapacity?
  /// How many loops are still at work.
  private let running: Atomic<Int>

  init(_ configuration: UploadServer.Configuration) throws(UploadServerError) {
    self.configuration = configuration
    running = Atomic(configuration.threads)
    usage = UploadUsage(configuration.uploads)
    downloads =
      configuration.allowsDownloads && configuration.writesSidecars
      ? DownloadCapacity(maximumCount: configuration.maximumDownloadCount) : nil
    if case .brokers(let brokers) = configuration.storage {
      self.brokers = try BrokerStorage(brokers, configuration)
    } else {
      brokers = nil
    }
    switch configuration.storage {
    case .directory(let path):
      do throws(DirectoryError) {
        files = try FileStore(
          path: path, durability: configuration.durability, closedLifetime: configuration.closedLifetime,
          hasSidecars: configuration.writesSidecars, software: configuration.software,
          split: configuration.writesSidecars ? configuration.split : nil, names: configuration.names,
          retention: configuration.retention.map { RetentionState($0, configuration.retentionClock) },
          files: openFiles, usage)
      } catch {
        throw UploadServerError(error, of: path)
      }
    case .discarding, .brokers: files = nil
    }
  }

  func parts(_ assignment: LoopAssignment, _ loop: EventLoop) throws(UploadServerError) -> Parts {
    let (uploads, durability) = (configuration.uploads, configuration.durability)
    guard case .directory(let path) = configuration.storage, let files else {
      return Parts(
        streams: CountingStore(maximumCount: uploads.maximumCount, maximumAge: uploads.maximumAge),
        records: UnwrittenUploadRecords(), worker: BackgroundWorker(), durability: .none,
        finishedLimits: finishedLimits(atMost: Self.finishedCountWhenDiscarding))
    }
    do throws(SystemError) {
      return Parts(
        streams: files,
        records: try UploadRecordStore(
          in: files.directory, disk: files.disk, worker: files.worker, files: openFiles, durability: durability,
          loop: loop, assignment: assignment),
        accounts: files.accounts, worker: files.worker, durability: durability,
        finishedLimits: finishedLimits(atMost: .max))
    } catch {
      throw .unwritableDirectory(path, reason: error.description)
    }
  }

  /// The downloads of one loop; nil where there are none.
  func downloads(_ context: ServingContext) -> RecordingDownloads? {
    guard let downloads, let files else { return nil }
    return RecordingDownloads(files, downloads, context)
  }

  /// The part of one loop. An owner's uploads are on all of them.
  private func finishedLimits(atMost count: Int) -> FinishedUploads.Limits {
    let uploads = configuration.uploads
    func part(_ whole: Int) -> Int { max(1, whole / configuration.threads) }
    return FinishedUploads.Limits(
      count: part(min(count, uploads.maximumFinishedCount)),
      countPerClient: part(uploads.maximumFinishedCountPerClient),
      bytes: part(Int(clamping: uploads.maximumFinishedSize)),
      bytesPerClient: part(Int(clamping: uploads.maximumFinishedSizePerClient)))
  }

  /// Looks for recordings that an earlier server has closed or left unfinished, on a thread of its own: there may be
  /// any number of files.
  ///
  /// - Parameters:
  ///   - found: an unfinished one, and how many seconds ago it was written.
  ///   - gone: a stream of which something is recorded and no file is left.
  ///   - failed: the directory cannot be listed.
  func find(
    _ found: @escaping @Sendable (StreamName, Int64) -> Void, gone: @escaping @Sendable (String) -> Void,
    failed: @escaping @Sendable (SystemError) -> Void
  ) {
    guard let files else { return }
    // Without one they stay as they are until the next start.
    try? NamedThread("sluice-finder") {
      do throws(SystemError) {
        try files.findRemoved(gone)
        try files.findUnfinished(found)
      } catch {
        failed(error)
      }
    }.detach()
  }

  /// Looks again for what is recorded of streams that have no files, as long after the start as these records live.
  func findRemoved(_ gone: @escaping @Sendable (String) -> Void) {
    guard let files else { return }
    try? NamedThread("sluice-finder") { try? files.findRemoved(gone) }.detach()
  }

  /// Begins to remove recordings that need not be kept, if there are such.
  ///
  /// - Parameter emit: told of each; on a thread of its own.
  func beginRetention(_ emit: @escaping @Sendable (ServerEvent) -> Void) { files?.beginRetention(emit) }

  /// Completes what the disk has refused, and looks for recordings that need not be kept any more. Any thread.
  func maintain() {
    files?.finishUnfinished()
    files?.applyRetention()
  }

  /// A loop stores nothing any more. With the last one another server may have the directory.
  func loopEnded() {
    if running.wrappingSubtract(1, ordering: .acquiringAndReleasing).newValue == 0 { files?.unlock() }
  }
}
