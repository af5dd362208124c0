// The public face: connect, run, stop.

internal import DiskFiles
internal import EventLoops
package import JetStream
package import StreamServing
package import StreamStore

/// Writes the uploads of a JetStream stream, which servers have stored there, into the files that a server with a
/// directory would have made of them.
///
///     let collector = try LogCollector(.init(brokers: options, stream: "sluice", directory: "recordings") { print($0.jsonLine) })
///     try collector.run()
package final class LogCollector: Sendable {
  package struct Configuration: Sendable {
    package var brokers: BrokerOptions
    /// The name of the JetStream stream.
    package var stream: String
    package var directory: String
    /// Which streams are collected.
    package var partition = StreamPartition.whole
    /// Whether the messages of a complete recording are removed from the log when the disk has the recording.
    package var purges = false
    /// How long a live stream may be silent before its recording is closed.
    package var finishAfter = Duration.seconds(3600)
    /// Whether each complete recording gets a sidecar, and a live WAV stream its true sizes.
    package var writesSidecars = true
    /// The largest hole that an upload may leave in its stream, in bytes.
    package var maximumHoleLength: UInt64 = 64 << 30
    /// When a live WAV stream continues in another file; nil leaves it to the senders.
    package var split: RecordingSplit?
    /// Which recordings get a link that carries their time; nil for none.
    package var names = RecordingNames(pattern: RecordingNames.standardPattern)
    /// The name and version of the software that sidecars name.
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
  /// Touched on the loop's thread, and before it runs.
  private nonisolated(unsafe) let collection: Collection
  private let failure = CollectorFailure()
  /// Of the last message that an earlier collector has finished with; 0 for none.
  package let startSequence: UInt64

  /// Locks the directory, puts it into the state of its last checkpoint, connects, and finds the stream. Waits for all of
  /// it.
  ///
  /// - Throws: ``LogCollectorError``, whose description says what to do.
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
    let start = try CollectionStart(store, configuration, created: source.created)
    startSequence = start.checkpoint.sequence
    let (loop, store) = (loop, store)
    let onEvent = configuration.onEvent
    let context = ServingContext(
      loop: loop, assignment: configuration.partition.assignment, figures: LoopFigures(),
      finishAfter: configuration.finishAfter, isValid: { _ in true }, emit: onEvent)
    let registry = StreamRegistry(
      context, store: store,
      limits: StreamLimits(
        options: UploadLimitsConfiguration(), usage: usage, accounts: nil, worker: store.worker, loop: loop),
      maximumHole: configuration.maximumHoleLength)
    collection = Collection(
      start.checkpoint, source.stream, store, registry, configuration, loop: loop, emit: onEvent
    ) { [failure] error in
      failure.error.withLock { $0 = error }
      store.unlock()
      loop.stop()
    }
    registry.restored()
    for lost in start.losses { onEvent(ServerEvent(.warning, reason: lost)) }
    for (name, silence) in start.unfinished { registry.found(name, silentFor: silence) }
    do throws(SystemError) {
      try store.findRemoved { registry.forgetClosed($0) }
    } catch {
      throw .unreadableDirectory(path, reason: error.description)
    }
  }

  /// Collects on the calling thread until ``stop()`` has done its work. May be called once.
  ///
  /// - Throws: ``LogCollectorError`` if it cannot continue.
  package func run() throws(LogCollectorError) {
    // Touched on the loop's thread only.
    nonisolated(unsafe) let collection = collection
    loop.execute { collection.start() }
    loop.run()
    if let error = failure.error.withLock({ $0 }) { throw error }
  }

  /// Stops when the disk has everything that was stored, and the checkpoint says so. Any thread; returns at once.
  package func stop() {
    // Touched on the loop's thread only.
    nonisolated(unsafe) let collection = collection
    loop.execute { collection.stop() }
  }
}

/// Why a collector has ended; nil if it was stopped.
private final class CollectorFailure: Sendable {
  let error = Lock<LogCollectorError?>(nil)
}

/// The stream of the log that a collector reads.
private struct LogSource {
  let stream: MessageStream
  let created: String

  /// Connects, and waits until the brokers have answered.
  ///
  /// - Parameter loop: which will use the stream; it does not run yet.
  init(_ configuration: LogCollector.Configuration, on loop: EventLoop) throws(LogCollectorError) {
    let opening: EventLoop
    do throws(SystemError) { opening = try EventLoop() } catch { throw .resources(error.description) }
    var found: Result<(MessageStream, MessageStreamState), BrokerError> = .failure(.timedOut)
    do throws(BrokerError) {
      let connection = try BrokerConnection(configuration.brokers)
      let client = try BrokerClient(connection, on: opening)
      MessageStream.find(configuration.stream, with: client) { result in
        switch result {
        case .failure(let error):
          found = .failure(error)
          opening.stop()
        case .success(let stream):
          stream.extent { extent in
            found = extent.map { (stream, $0) }
            opening.stop()
          }
        }
      }
      opening.run()
      let (stream, extent) = try found.get()
      self.stream = stream.attached(to: try BrokerClient(connection, on: loop))
      created = extent.created
    } catch {
      throw error.isStreamNotFound ? .noStream(configuration.stream) : .brokers(error)
    }
  }
}
