// All settings of a server, with their defaults.

internal import DiskFiles
public import HTTPMessages
public import HTTPServer
public import JetStream
internal import ResumableServing
public import StreamServing
public import StreamStore

extension UploadServer {
  /// The settings of a server.
  public struct Configuration: Sendable {
    /// The addresses to listen on, at least one.
    public var listen: [ListenAddress]
    /// The storage of streams.
    public var storage: Storage
    /// The durability of a directory's contents. For a log, ``StreamServing/Durability/always`` requires the proof of
    /// ``Brokers/witnesses``.
    public var durability = Durability.interval
    /// The number of threads that serve connections, each with its own loop. A stream and an upload belong to one of
    /// them. A connection moves to the thread of its request's stream or upload.
    public var threads = 1
    /// A file with the SHA-256 of each accepted token in hexadecimal, one per line, with an optional name after it. `#`
    /// begins a comment. If it is set, every request requires `Authorization: Bearer`, and otherwise gets 401. Uploads
    /// and streams belong to the token that began them. The file is read again when it changes. Nil accepts everyone.
    public var tokenFile: String?
    /// The limits of resumable uploads.
    public var uploads = UploadLimitsConfiguration()
    /// The time without a request after which the recording of a live stream is closed. It gets its final name and a
    /// line in `.gaps`. A client that returns later continues in a next part, which is a separate file.
    public var finishAfter = Duration.seconds(3600)
    /// How long a closed stream is remembered after its recordings were moved away. Its owner may continue it in a next
    /// part.
    var closedLifetime: Duration { max(uploads.maximumAge, finishAfter) }
    /// Whether each complete recording gets a sidecar (`RecordingSidecar`), and a live WAV stream gets correct sizes.
    /// The sidecar keeps the header as it was received.
    public var writesSidecars = true
    /// The conditions under which a live WAV stream continues in another file with its own header. The files of a
    /// stream follow each other without a gap. Nil means that only senders set such conditions. Requires
    /// ``writesSidecars``.
    public var split: RecordingSplit?
    /// The recordings that get a link with their start time in its name, and the pattern of that name. Nil for none.
    public var names = RecordingNames(pattern: RecordingNames.standardPattern)
    /// The rules for removing complete recordings. Nil means never. Requires ``writesSidecars``.
    public var retention: RecordingRetention?
    /// How often the server searches for such recordings, and for sidecars that the disk has refused.
    package var maintenancePause = Duration.seconds(60)
    /// Whether GET and HEAD return complete recordings. A token gets the recordings that it began. Without tokens,
    /// everyone gets those that were begun without one. Requires ``writesSidecars``, because the server identifies its
    /// recordings by their sidecars.
    public var allowsDownloads = false
    /// The maximum number of simultaneous downloads, at most half of them for one client. More get 503. Each takes up
    /// to 512 KiB of memory.
    public var maximumDownloadCount = 100
    /// The clock that measures the age of recordings.
    var retentionClock = RetentionState.Clock()
    /// The name and version of the software in sidecars.
    public var software = "Sluice"
    /// Returns a custom handler for a request, instead of the store. Nil leaves the request to the store. It is called
    /// on a server's thread for each request. It is also called for an upload that continues after a restart, and for
    /// OPTIONS, to determine the methods. It must not have side effects. Put them into
    /// ``HTTPServer/RequestHandler/begin(_:)``.
    public var handler: @Sendable (RequestHead) -> (any RequestHandler)? = { _ in nil }

    /// The longest body of a request in bytes. A longer one gets 413. Nil means no limit.
    public var maximumBodyLength: UInt64?
    /// The longest request line and fields together, in bytes. More get 431.
    public var maximumHeadLength = 16 * 1024
    /// The maximum number of fields of a request. More get 431.
    public var maximumFieldCount = 100
    /// The largest hole that a request may leave in a stream, in bytes. A larger one gets 409. A request claims it with
    /// a single field, so it is bounded by default. 64 GiB are four days of 16-bit stereo. A hole takes no space on the
    /// disk, but copying or hashing the file reads all of it. It counts against the quotas like received bytes.
    public var maximumHoleLength: UInt64 = 64 << 30

    /// The longest time for a head, from the connection or its first byte to its end. Zero means no limit.
    public var headTimeout = Duration.seconds(30)
    /// The longest time without data in a body. Zero means no limit, because the source of a live stream may be silent.
    /// TCP keep-alive detects peers whose machine has failed.
    public var bodyIdleTimeout = Duration.zero
    /// The time that a connection stays open for its next request.
    public var keepAliveTimeout = Duration.seconds(75)
    /// The time for a client to read a response that was sent before the end of its body.
    public var lingerTimeout = Duration.seconds(5)

    /// `SO_RCVBUF` of every connection in bytes. Nil means that the kernel tunes it.
    public var receiveBufferSize: Int?
    /// `TCP_MAXSEG` of every connection in bytes. Nil means that the path determines it.
    public var maximumSegmentSize: Int?

    /// The identifier of this boot of the machine; nil asks the kernel.
    package var bootIdentifier: String?

    /// Receives the events of streams on the server's thread, and must not block. With several threads, it is called on
    /// each of them, perhaps simultaneously.
    public var onEvent: @Sendable (ServerEvent) -> Void

    /// Creates the settings of a server with these addresses.
    public init(
      listen: [ListenAddress], storage: Storage, onEvent: @escaping @Sendable (ServerEvent) -> Void = { _ in }
    ) {
      self.listen = listen
      self.storage = storage
      self.onEvent = onEvent
    }

    /// Creates the settings of a server that stores streams as files in a directory.
    public init(
      listen: [ListenAddress], directory: String, onEvent: @escaping @Sendable (ServerEvent) -> Void = { _ in }
    ) {
      self.init(listen: listen, storage: .directory(directory), onEvent: onEvent)
    }
  }

  /// The storage of streams.
  public enum Storage: Sendable, Equatable {
    /// As files in that directory. It is created if it is missing and its parent exists, and locked against other
    /// servers.
    case directory(String)
    /// Nowhere. Everything is received and acknowledged, and nothing is stored, to measure the cost of that. Unfinished
    /// streams and uploads are kept in memory, and a few of them for a while afterwards. Bytes that are sent again are
    /// not compared. A resumable upload to a custom handler requires a directory, and gets 500.
    case discarding
    /// As messages of a JetStream stream, which any number of servers share. Each can answer any request for any
    /// upload. A byte is acknowledged when the brokers have acknowledged it. Counts, quotas and ages apply to the
    /// uploads of all servers together, so all servers require the same limits. Limits per client apply to tokens
    /// only. A custom handler gets plain requests. A resumable upload to it gets 500.
    case brokers(Brokers)
  }

  /// The brokers that store uploads, and their JetStream stream.
  public struct Brokers: Sendable, Equatable {
    /// The connection to the brokers.
    public var options: BrokerOptions
    /// The name of the stream, and the first part of each upload's subject: letters, digits, `_` and `-`.
    public var stream: String
    /// The number of brokers that store each message, if the stream is created. An existing stream must have this
    /// number.
    public var replicas: Int
    /// The sources of the brokers' sync settings.
    public var witnesses = BrokerWitnesses()

    /// Creates the description of brokers that store uploads in `stream`.
    public init(_ options: BrokerOptions, stream: String = "sluice", replicas: Int = 1) {
      (self.options, self.stream, self.replicas) = (options, stream, replicas)
    }
  }
}
