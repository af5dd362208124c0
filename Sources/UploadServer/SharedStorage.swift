// The storage of the loops of a server: the shared parts, and the part of each loop.

internal import DiskFiles
internal import EventLoops
internal import ResumableServing
internal import StreamServing
internal import StreamStore
internal import Synchronization

/// The directory and the limits of a server, whatever the number of its loops. Any thread.
final class SharedStorage: Sendable {
  /// The storage objects of one loop.
  struct Parts {
    var streams: any StreamStore
    var records: any UploadRecords
    /// nil if the bytes of streams are not counted.
    var accounts: StreamAccounts?
    var worker: BackgroundWorker
    var durability: Durability
    /// The limits for the records of ended uploads.
    var finishedLimits: FinishedUploads.Limits
  }

  private static let finishedCountWhenDiscarding = 1000

  let usage: UploadUsage
  let openFiles = OpenFiles()
  /// The log that is shared with other servers, if there is one.
  let brokers: BrokerStorage?
  private let configuration: UploadServer.Configuration
  /// The directory, which is locked until the end; nil if nothing is stored.
  private let files: FileStore?
  /// The directory of the upload records in it.
  private let recordsDirectory: RecordsDirectory?
  /// nil if nothing can be downloaded.
  private let downloads: DownloadCapacity?
  /// How many loops still run.
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
        let files = try FileStore(
          path: path, durability: configuration.durability, closedLifetime: configuration.closedLifetime,
          hasSidecars: configuration.writesSidecars, software: configuration.software,
          split: configuration.writesSidecars ? configuration.split : nil, names: configuration.names,
          retention: configuration.retention.map {
            RetentionState($0, configuration.retentionClock, isPerOwner: configuration.tokenFile != nil)
          },
          boot: configuration.bootIdentifier ?? BootIdentifier.current, files: openFiles, usage)
        self.files = files
        recordsDirectory = RecordsDirectory(in: files.directory)
      } catch {
        throw UploadServerError(error, of: path)
      }
    case .discarding, .brokers: (files, recordsDirectory) = (nil, nil)
    }
  }

  func parts(_ context: ServingContext) throws(UploadServerError) -> Parts {
    let (uploads, durability) = (configuration.uploads, configuration.durability)
    guard case .directory(let path) = configuration.storage, let files, let recordsDirectory else {
      return Parts(
        streams: CountingStore(maximumCount: uploads.maximumCount, maximumAge: uploads.maximumAge),
        records: UnwrittenUploadRecords(), worker: BackgroundWorker(), durability: .none,
        finishedLimits: finishedLimits(atMost: Self.finishedCountWhenDiscarding))
    }
    do throws(SystemError) {
      return Parts(
        streams: files,
        records: try UploadRecordStore(
          in: recordsDirectory, disk: files.disk, worker: files.worker, files: openFiles, durability: durability,
          loop: context.loop, assignment: context.assignment, emit: context.emit),
        accounts: files.accounts, worker: files.worker, durability: durability,
        finishedLimits: finishedLimits(atMost: .max))
    } catch {
      throw .unwritableDirectory(path, reason: error.description)
    }
  }

  /// The downloads of one loop; nil if there are none.
  func downloads(_ context: ServingContext) -> RecordingDownloads? {
    guard let downloads, let files else { return nil }
    return RecordingDownloads(files, downloads, context)
  }

  /// The share of one loop. An owner's uploads are distributed over all loops.
  private func finishedLimits(atMost count: Int) -> FinishedUploads.Limits {
    let uploads = configuration.uploads
    func part(_ whole: Int) -> Int { max(1, whole / configuration.threads) }
    return FinishedUploads.Limits(
      count: part(min(count, uploads.maximumFinishedCount)),
      countPerClient: part(uploads.maximumFinishedCountPerClient),
      bytes: part(Int(clamping: uploads.maximumFinishedSize)),
      bytesPerClient: part(Int(clamping: uploads.maximumFinishedSizePerClient)))
  }

  /// The search for what earlier servers have left, see ``RecordingSearch``; nil if there are no files.
  func search(
    found: @escaping @Sendable (StreamName, Int64) -> Void, gone: @escaping @Sendable (String) -> Void,
    failed: @escaping @Sendable (SystemError) -> Void
  ) -> RecordingSearch? {
    files.map { RecordingSearch($0, found: found, gone: gone, failed: failed) }
  }

  /// - Parameter emit: called with each recording that the disk repeatedly does not let the server finish. On any
  ///   thread.
  func reportUnfinished(to emit: @escaping @Sendable (ServerEvent) -> Void) { files?.reportUnfinished(to: emit) }

  /// Begins to remove recordings that need not be kept, if there are such rules.
  ///
  /// - Parameter emit: called with each removal, on a separate thread.
  func beginRetention(_ emit: @escaping @Sendable (ServerEvent) -> Void) { files?.beginRetention(emit) }

  /// Completes writes that the disk has refused, marks growing files that could not be opened before, lists the
  /// directory again if that has failed, and searches for recordings that need not be kept any more. Any thread.
  func maintain() {
    files?.finishUnfinished()
    files?.markUnmarked()
    files?.listAgain()
    files?.applyRetention()
  }

  /// A loop no longer stores anything. After the last one, another server may use the directory.
  func loopEnded() {
    if running.wrappingSubtract(1, ordering: .acquiringAndReleasing).newValue == 0 { files?.unlock() }
  }
}
