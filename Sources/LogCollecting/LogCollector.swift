// The interface of the module: connect, run, stop.

internal import DiskFiles
internal import EventLoops
package import JetStream
package import StreamServing
package import StreamStore

/// Writes the uploads that servers have stored in a JetStream stream into files. The files are those that a server with
/// a directory would have written.
///
///     let collector = try LogCollector(
///       .init(brokers: options, stream: "sluice", directory: "recordings") { print($0.jsonLine) })
///     try collector.run()
package final class LogCollector: Sendable {
  package struct Configuration: Sendable {
    package var brokers: BrokerOptions
    /// The name of the JetStream stream.
    package var stream: String
    package var directory: String
    /// The part of the streams that is collected.
    package var partition = StreamPartition.whole
    /// Whether the messages of a complete recording are removed from the log after the recording is synced.
    package var purges = false
    /// How long a live stream may be silent before its recording is closed.
    package var finishAfter = Duration.seconds(3600)
    /// Whether each complete recording gets a sidecar, and a live WAV stream its true sizes.
    package var writesSidecars = true
    /// The maximum hole that an upload may leave in its stream, in bytes.
    package var maximumHoleLength: UInt64 = 64 << 30
    /// When a live WAV stream continues in another file. With nil, the senders decide.
    package var split: RecordingSplit?
    /// The links with the times of recordings. Nil for none.
    package var names = RecordingNames(pattern: RecordingNames.standardPattern)
    /// The name and version of the software in sidecars.
    package var software = "Sluice"
    /// Called on the thread of ``LogCollector/run()``.
    package var onEvent: @Sendable (ServerEvent) -> Void

    package init(
      brokers: BrokerOptions, stream: String, directory: String, onEvent: @escaping @Sendable (ServerEvent) -> Void
    ) {
      (self.brokers, self.stream, self.directory, self.onEvent) = (brokers, stream, directory, onEvent)
    }
  }

  private let loop: EventLoop
  private let store: FileStore
  /// Used on the loop's thread, and before it runs.
  private nonisolated(unsafe) let collection: Collection
  private let failure = CollectorFailure()
  /// The sequence of the last message that an earlier collector has processed. 0 for none.
  package let startSequence: UInt64

  /// Locks the directory, restores it to its last checkpoint, connects, and finds the stream. Returns when all of this
  /// is done.
  ///
  /// - Throws: ``LogCollectorError``, whose description contains a remedy.
  package init(_ configuration: Configuration) throws(LogCollectorError) {
    let path = configuration.directory
    let usage = UploadUsage(UploadLimitsConfiguration())
    do throws(DirectoryError) {
      store = try FileStore(
        path: path, durability: .interval, closedLifetime: configuration.finishAfter,
        hasSidecars: configuration.writesSidecars, software: configuration.software,
        split: configuration.writesSidecars ? configuration.split : nil, names: configuration.names,
        isCollected: true, files: OpenFiles(), usage)
    } catch {
      throw LogCollectorError(error, of: path)
    }
    do throws(SystemError) { loop = try EventLoop() } catch { throw .resources(error.description) }
    let source = try LogSource(configuration, on: loop)
    let (loop, store) = (loop, store)
    let onEvent = configuration.onEvent
    store.reportUnfinished { event in loop.execute { onEvent(event) } }
    let start = try CollectionStart(store, configuration, created: source.created)
    startSequence = start.checkpoint.position.sequence
    let context = ServingContext(
      loop: loop, assignment: configuration.partition.assignment, figures: ServerLoopFigures(),
      finishAfter: configuration.finishAfter, isValid: { _ in true },
      emit: { event in if !CollectedUpload.isResponse(event) { onEvent(event) } })
    let registry = StreamRegistry(
      context, store: store,
      limits: StreamLimits(
        options: UploadLimitsConfiguration(), usage: usage, accounts: nil, worker: store.worker, loop: loop),
      maximumHole: configuration.maximumHoleLength,
      // The next collector must find the parts that the checkpoint describes, so none is closed because of its gaps.
      maximumGapLines: .max)
    collection = Collection(
      start.checkpoint, omitting: Set(start.unreadable.keys), source.stream, store, registry, configuration, loop: loop,
      emit: onEvent
    ) { [failure] error in
      failure.error.withLock { $0 = error }
      store.unlock()
      loop.stop()
    }
    registry.restored()
    for lost in start.losses { onEvent(ServerEvent(.warning, reason: lost)) }
    for (name, error) in start.unreadable.sorted(by: { $0.key.base < $1.key.base }) {
      onEvent(ServerEvent(unreadable: name, error))
    }
    for (name, silence) in start.unfinished { registry.found(name, silentFor: silence) }
    // The age of a stream's log does not show whether an upload may continue the stream.
    let continuable = Set(start.checkpoint.uploads.map(\.origin.name))
    do throws(SystemError) {
      let unread = try store.findRemoved(except: Set(start.unreadable.keys), continuable: continuable) {
        registry.forgetClosed($0)
      }
      if let error = unread {
        onEvent(ServerEvent(.warning, reason: "cannot read the records of some removed streams: \(error)"))
      }
    } catch {
      throw .unreadableDirectory(path, reason: error.description)
    }
  }

  /// Collects on the calling thread until the end that ``stop()`` requests. Call it once.
  ///
  /// - Throws: ``LogCollectorError`` if it cannot continue.
  package func run() throws(LogCollectorError) {
    // Used only on the loop's thread.
    nonisolated(unsafe) let collection = collection
    loop.execute { collection.start() }
    loop.run()
    if let error = failure.error.withLock({ $0 }) { throw error }
  }

  /// Requests the end. All stored bytes are synced and a checkpoint is written before it. Any thread. Returns at once.
  package func stop() {
    // Used only on the loop's thread.
    nonisolated(unsafe) let collection = collection
    loop.execute { collection.stop() }
  }
}

extension ServerEvent {
  /// A stream is not collected.
  fileprivate init(unreadable name: StreamName, _ error: SystemError) {
    self.init(
      .warning,
      reason: "cannot collect the stream \(name.base): \(error). Its files do not change, and its messages stay in the "
        + "log. Make its files readable, and start the collector again.")
    file = name.partial
  }
}

/// The error with which a collector has ended. Nil if it was stopped.
private final class CollectorFailure: Sendable {
  let error = Lock<LogCollectorError?>(nil)
}

/// The stream of the log that a collector reads.
private struct LogSource {
  let stream: MessageStream
  let created: String

  /// Connects, and waits until the brokers have answered.
  ///
  /// - Parameter loop: the loop that will use the stream. It does not run yet.
  init(_ configuration: LogCollector.Configuration, on loop: EventLoop) throws(LogCollectorError) {
    let name = configuration.stream
    do throws(BrokerError) {
      (stream, created) = try BrokerConnection.open(configuration.brokers) {
        (connection: BrokerConnection) throws(BrokerError) -> (MessageStream, String) in
        let (stream, extent): (MessageStream, MessageStreamState) = try connection.wait { client, done in
          MessageStream.find(name, with: client) { found in
            switch found {
            case .failure(let error): done(.failure(error))
            case .success(let stream): stream.extent { extent in done(extent.map { (stream, $0) }) }
            }
          }
        }
        return (stream.attached(to: BrokerClient(connection, on: loop)), extent.created)
      }
    } catch {
      throw error.isStreamNotFound ? .noStream(name) : .brokers(error)
    }
  }
}
