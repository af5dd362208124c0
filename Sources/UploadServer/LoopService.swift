// The service for the requests of one loop: streams and uploads in a directory, or in a log that several servers share.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import LogServing
internal import ResumableServing
internal import StreamServing
internal import StreamStore

/// Everything behind the connections of a loop. Only on the loop's thread.
protocol LoopService: AnyObject {
  /// The handler of a request that was let in.
  func handler(for head: RequestHead) -> any RequestHandler
  /// The loop that a request belongs to, where it is another one than this.
  func otherLoop(of head: RequestHead) -> Int?
  /// Takes up what an earlier server has left, as far as `patience` goes. Before any loop runs.
  func load(patience: Duration)
  /// The last connection has ended: completes what must be, and calls `ended`.
  func end(_ ended: @escaping () -> Void)
}

/// Streams as files, and upload resources with records beside them.
final class DirectoryService: LoopService {
  let registry: StreamRegistry
  private let uploads: UploadResources
  private let assignment: LoopAssignment
  private let resumable: ResumableUploadHandler

  init(
    _ context: ServingContext, _ configuration: UploadServer.Configuration, _ shared: SharedStorage
  ) throws(UploadServerError) {
    let (loop, storage) = (context.loop, try shared.parts(context))
    assignment = context.assignment
    let registry = StreamRegistry(
      context, store: storage.streams,
      limits: StreamLimits(
        options: configuration.uploads, usage: shared.usage, accounts: storage.accounts, worker: storage.worker,
        loop: loop),
      maximumHole: configuration.maximumHoleLength)
    self.registry = registry
    let downloads = shared.downloads(context)
    uploads = UploadResources(
      context,
      .init(
        options: configuration.uploads, durability: storage.durability,
        bootIdentifier: configuration.bootIdentifier ?? "", finishedLimits: storage.finishedLimits,
        maximumBodyLength: configuration.maximumBodyLength),
      store: storage.records, worker: storage.worker, usage: shared.usage, accounts: storage.accounts,
      router: { head in
        configuration.handler(head).map { .other($0) } ?? Self.route(head, registry, downloads)
      })
    uploads.becameKnown = { [weak uploads] in
      registry.restored { uploads?.mayHaveUnknownUploads(of: $0) ?? true }
    }
    resumable = ResumableUploadHandler(uploads)
  }

  func handler(for head: RequestHead) -> any RequestHandler { resumable.handler(for: head) }

  func otherLoop(of head: RequestHead) -> Int? {
    let owner = ResumableUploadHandler.owner(of: head, among: assignment)
    return owner == assignment.index ? nil : owner
  }

  func load(patience: Duration) { uploads.load(patience: patience) }

  /// How work on this loop is done when each request that has reached the server by now has reached its loop.
  func gather(by gather: @escaping (@escaping @Sendable () -> Void) -> Void) { uploads.gather = gather }

  func end(_ ended: @escaping () -> Void) {
    registry.stop()
    // The disk may still be at work on a stream that has ended: its file gets its name, and its event, first.
    registry.whenNothingFinishes { [self] in uploads.end(ended) }
  }

  private static func route(
    _ head: RequestHead, _ registry: StreamRegistry, _ downloads: RecordingDownloads?
  ) -> RoutedHandler {
    switch head.method {
    case "GET" where head.target.path != "/", "HEAD" where head.target.path != "/":
      .other(downloads?.handler(for: head) ?? OtherRequests.handler(for: head))
    case "POST", "PUT": .keeping(StreamStoreHandler(head: head, registry: registry))
    default: .other(OtherRequests.handler(for: head))
    }
  }
}

/// Uploads in a log of brokers. Any loop serves any request, and nothing has to be completed.
final class LogService: LoopService {
  private let uploads: LogUploadHandler
  /// nil on all loops but one.
  private let watch: LogWatch?
  private let other: @Sendable (RequestHead) -> (any RequestHandler)?

  init(_ context: ServingContext, _ configuration: UploadServer.Configuration, _ brokers: BrokerStorage) {
    let log = UploadLog(
      context, stream: brokers.stream(on: context.loop), options: configuration.uploads, usage: brokers.usage,
      maximumBodyLength: configuration.maximumBodyLength, maximumHole: configuration.maximumHoleLength,
      isDurable: { brokers.guardian.mayStore })
    uploads = LogUploadHandler(log)
    watch = context.assignment.index == 0 ? LogWatch(log) : nil
    other = configuration.handler
  }

  func handler(for head: RequestHead) -> any RequestHandler {
    guard let handler = other(head) else { return uploads.handler(for: head) }
    // A handler would take a part of an upload for the whole.
    guard LogUploadHandler.isPlain(head) else {
      return FixedResponseHandler(
        Response(500, body: "Resumable uploads to a custom handler require a server with a directory.\n"))
    }
    return handler
  }
  func otherLoop(of head: RequestHead) -> Int? { nil }
  func load(patience: Duration) { watch?.start() }
  func end(_ ended: @escaping () -> Void) {
    watch?.stop()
    ended()
  }
}
