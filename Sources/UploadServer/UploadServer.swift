// The public type: bind, run, stop.

internal import DiskFiles
internal import EventLoops
public import HTTPServer
public import Metrics
internal import ResumableServing
internal import StreamServing
internal import StreamStore
internal import Synchronization

/// An HTTP/1.1 server that stores each received stream in a file of a directory as it arrives.
///
/// `POST` and `PUT` to any path store a stream, and the response is sent when it has ended. `Stream-ID` and
/// `Stream-Offset` in a request continue an interrupted stream. The same fields in a response report the stored bytes.
/// One thread serves all connections, or as many as ``Configuration/threads`` states.
///
///     let server = try UploadServer(configuration: .init(listen: [ListenAddress(":8080")], directory: "recordings"))
///     try await server.run()
public final class UploadServer: Sendable {
  private let cores: [LoopOwned<ServerCore>]
  private let loadPatience: Duration
  private let closedLifetime: Duration
  private let maintenancePause: Duration
  private let loops: [EventLoop]
  let shared: SharedStorage
  /// nil if nothing is stored in files.
  private let search: RecordingSearch?
  private let acceptor: LoopOwned<Acceptor>
  let routes: Routes
  private let started = Lock(false)
  private let ended = EndSignal()
  /// How many loops have requests that a stopping server waits for.
  private let undrained: Atomic<Int>
  private let lastFigures = LastFigures()
  private let residentBytesAtStart = ProcessFigures.residentBytes

  /// The addresses on which the server listens, with the ports that the kernel chose for port 0.
  public let localAddresses: [ListenAddress]

  /// Opens the storage and binds every address. A directory is also locked. From now on, connections are queued.
  ///
  /// - Throws: ``UploadServerError``, whose description names the remedy.
  public init(configuration: Configuration) throws(UploadServerError) {
    let count = max(1, configuration.threads)
    var configuration = configuration
    configuration.threads = count
    configuration.bootIdentifier = configuration.bootIdentifier ?? BootIdentifier.current
    let shared = try SharedStorage(configuration)
    self.shared = shared
    let routes = Routes { [onEvent = configuration.onEvent] error, head in
      onEvent(ServerEvent(.warning, reason: "the handler of \(head.method) \(head.target.path) failed: \(error)"))
    }
    self.routes = routes
    configuration.handler = { [handler = configuration.handler] in routes.handler(for: $0) ?? handler($0) }
    var loops: [EventLoop] = []
    var cores: [ServerCore] = []
    for index in 0..<count {
      do throws(SystemError) {
        loops.append(try EventLoop())
      } catch {
        throw .resources(error.description)
      }
      cores.append(
        try ServerCore(configuration, shared, LoopAssignment(index: index, count: count), loop: loops[index]))
    }
    loadPatience = configuration.uploads.loadPatience
    closedLifetime = configuration.closedLifetime
    maintenancePause = configuration.maintenancePause
    do throws(ListenError) {
      let first = cores[0]
      let acceptor = try Acceptor(
        at: configuration.listen,
        Listener.Options(
          receiveBufferSize: configuration.receiveBufferSize, maximumSegmentSize: configuration.maximumSegmentSize),
        zip(cores, loops).map { LoopOwned($0.connections, on: $1) },
        descriptorLimit: { OpenFiles.connectionLimit }, closeIdle: { shared.openFiles.closeIdle() > 0 },
        failed: { first.say($0) })
      localAddresses = acceptor.listeners.map(\.address)
      self.acceptor = LoopOwned(acceptor, on: loops[0])
    } catch {
      throw .listening(error)
    }
    let owned = zip(cores, loops).map { LoopOwned($0, on: $1) }
    self.cores = owned
    self.loops = loops
    search = shared.search(
      found: { name, silence in for core in owned { core.execute { $0.found(name, silentFor: silence) } } },
      gone: { base in for core in owned { core.execute { $0.forgetClosed(base) } } },
      failed: { error in owned[0].execute { $0.cannotFind(error) } })
    undrained = Atomic(count)
    for (index, core) in cores.enumerated() {
      core.ended = { [lastFigures] figures in
        lastFigures.set(figures, of: index)
        shared.loopEnded()
      }
      core.connections.handOver = { [unowned self] connection, index in give(connection, to: index) }
      core.connections.drained = { [unowned self] in drained() }
      core.gather { [unowned self] work in gather(for: index, work) }
    }
  }

  /// Serves until ``shutdown(grace:)`` has finished, on the calling thread and on further threads up to
  /// ``Configuration/threads``. Call it only once, and not after ``start()``. Not an overload of ``run()``, which
  /// top-level code would then not choose.
  package func serveOnThisThread() {
    let isFirst = started.withLock { started in
      defer { started = true }
      return !started
    }
    precondition(isFirst, "an UploadServer can run only once")
    for core in cores { core.value.load(patience: loadPatience / cores.count) }
    for core in cores { core.value.start() }
    // Weak, because the cores own those that report.
    let report: @Sendable (ServerEvent) -> Void = { [weak self] event in
      self?.cores[0].execute { $0.report(event) }
    }
    shared.reportUnfinished(to: report)
    search?.begin(SearchPlan.Search.allCases)
    findRemovedLater()
    shared.brokers?.guardian.report { report(ServerEvent(.warning, reason: $0)) }
    shared.beginRetention(report)
    maintainLater()
    acceptor.value.start()
    let others = zip(loops, cores).dropFirst().map { loop, core in
      do throws(SystemError) {
        return Optional(try NamedThread("sluice-server") { loop.run() })
      } catch {
        // The streams of that loop would never be served.
        core.value.say("the server stops, because it cannot start a thread: \(error)")
        shutdown(grace: .zero)
        return nil
      }
    }
    loops[0].run()
    for thread in others { thread?.join() }
    ended.signal()
  }

  /// Serves on separate threads. Throws ``UploadServerError/resources(_:)`` if none can be created.
  public func start() throws(UploadServerError) {
    do throws(SystemError) {
      try NamedThread("sluice-server") { self.serveOnThisThread() }.detach()
    } catch {
      throw .resources(error.description)
    }
  }

  /// Stops accepting connections and requests, closes idle connections, and lets current requests end for at most
  /// `grace`. Streams whose clients can continue them are served until the others have ended, or the grace period is
  /// over. Then each gets a 503 with the offset up to which it is stored, so that its client continues exactly there at
  /// the next server. Its `.part` stays. Any thread. Returns at once. A second call with a grace of zero ends the
  /// server without waiting for clients to read these responses.
  public func shutdown(grace: Duration = .seconds(2)) { stop(grace: grace, linger: nil) }

  /// Like ``shutdown(grace:)``, but within `limit` in total. Requests have half of it to end, and clients a quarter to
  /// read their responses. The rest is for the disk, for which the server waits in any case. Downloads whose clients
  /// read something in each quarter continue in the meantime, for all of the time but a sixteenth. Any thread. Returns
  /// at once.
  public func drain(within limit: Duration) {
    stop(grace: limit / 2, linger: limit / 4, downloads: limit - limit / 16)
  }

  private func stop(grace: Duration, linger: Duration?, downloads: Duration? = nil) {
    // This comes first: a client that sees its connection closed must not be able to connect again.
    loops[0].execute { [self] in
      acceptor.value.stop()
      for core in cores {
        core.execute { $0.connections.stop(grace: grace, linger: linger, downloads: downloads) }
      }
    }
  }

  /// A loop has no request that must end before the server does. After the last such loop, clients that still send are
  /// disconnected on all loops. Before that, they could connect again.
  private func drained() {
    guard undrained.wrappingSubtract(1, ordering: .acquiringAndReleasing).newValue == 0 else { return }
    for core in cores { core.execute { $0.connections.turnAway() } }
  }

  /// Waits until the server has ended. Any thread except the server's.
  public func waitUntilEnded() { ended.wait() }

  /// The uploads whose acknowledged bytes the disk refused when the server ended. 0 until then. Any thread.
  package var unsyncedUploadCount: Int {
    cores.indices.reduce(0) { $0 + (lastFigures.figures(of: $1)?.unsyncedUploads ?? 0) }
  }

  /// Notes for an operator about the brokers that store uploads, one sentence each.
  public var storageNotes: [String] { shared.brokers?.notes ?? [] }

  /// Whether the server can store uploads now. It is false while no broker is connected, while the requested durability
  /// is not proven, and until the server knows the uploads of other servers. Any thread.
  public var isReady: Bool { shared.brokers?.isReady ?? true }

  /// Collects the server's metrics for a ``HTTPServer/MetricsListener``, and passes them to `answer` as soon as each
  /// loop has contributed. Any thread. While the server stops and afterwards, loops that have ended contribute their
  /// last figures.
  public func figures(_ answer: @escaping @Sendable (MetricsText) -> Void) {
    let (start, brokers) = (residentBytesAtStart, shared.brokers)
    let sum = FigureSum(of: cores.count)
    for (index, core) in cores.enumerated() {
      let asked = MonotonicInstant.now
      let contribution = LoopContribution { [lastFigures] figures in
        guard let figures = figures ?? lastFigures.figures(of: index), let all = sum.add(figures) else { return }
        var page = all.page(residentBytesAtStart: start)
        if let brokers { all.addBrokers(to: &page, reconnects: brokers.reconnectCount) }
        answer(page)
      }
      core.execute { contribution.set($0.figures(asked: asked)) }
    }
  }

  /// Performs `work` on that loop once each request that has reached the server by now has reached its loop. A request
  /// may still be in a queue between loops, or unread on a connection of another loop.
  private func gather(for index: Int, _ work: @escaping @Sendable () -> Void) {
    let gathering = Gathering(loops[index], work)
    // Connections that wait to be accepted come first, because the first loop accepts them for all.
    loops[0].execute { [loops] in
      loops[0].afterReady {
        for loop in loops {
          loop.execute { loop.afterReady { withExtendedLifetime(gathering) {} } }
        }
      }
    }
  }

  /// Repeats the search after the lifetime of a record. On the first loop's thread, or before it runs.
  private func findRemovedLater() {
    loops[0].schedule(after: closedLifetime) { [unowned self] in
      search?.begin([.removed])
      findRemovedLater()
    }
  }

  /// Repeats itself. On the first loop's thread, or before it runs.
  private func maintainLater() {
    loops[0].schedule(after: maintenancePause) { [unowned self] in
      shared.maintain()
      search?.maintain()
      maintainLater()
    }
  }

  private func give(_ connection: ConnectionHandover, to index: Int) {
    cores[index].execute { $0.connections.take(connection) }
  }
}

/// Performs its work on a loop once nothing refers to it any more. Each loop refers to it until it has done its part or
/// has ended.
private final class Gathering: Sendable {
  private let loop: EventLoop
  private let work: @Sendable () -> Void

  init(_ loop: EventLoop, _ work: @escaping @Sendable () -> Void) {
    self.loop = loop
    self.work = work
  }

  deinit { loop.execute(work) }
}
