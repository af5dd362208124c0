// Everything about a server that can be chosen, with what it is when nobody chooses.

internal import DiskFiles
public import HTTPMessages
public import HTTPServer
public import JetStream
internal import ResumableServing
public import StreamServing
public import StreamStore

extension UploadServer {
  /// Everything about a server that can be chosen.
  public struct Configuration: Sendable {
    /// Where to listen; at least one address.
    public var listen: [ListenAddress]
    /// Where streams are stored.
    public var storage: Storage
    /// Of what a directory stores. Of a log, ``StreamServing/Durability/always`` requires the proof of ``Brokers/witnesses``.
    public var durability = Durability.interval
    /// How many threads serve connections, each with a loop of its own. A stream and an upload belong to one of them; a
    /// connection goes to the thread of what its request is for.
    public var threads = 1
    /// A file with the SHA-256 of each token that is let in, in hexadecimal, one a line, and a name behind it if one
    /// likes; `#` begins a comment. With it every request needs `Authorization: Bearer`, and is else answered with 401;
    /// uploads and streams belong to the token that began them. Read again when it changes. nil lets everyone in.
    public var tokenFile: String?
    /// What resumable uploads may take.
    public var uploads = UploadLimitsConfiguration()
    /// How long a live stream may be silent, with no request at work on it, before its recording is closed: it gets its
    /// final name and a line in `.gaps`. A client that comes back later continues in a next part, a file of its own.
    public var finishAfter = Duration.seconds(3600)
    /// How long a closed stream is remembered when its recordings were moved away: its owner may continue it in a next
    /// part.
    var closedLifetime: Duration { max(uploads.maximumAge, finishAfter) }
    /// Whether each complete recording gets a sidecar (`RecordingSidecar`), and a live WAV stream its true sizes: the
    /// sidecar remembers the head as it was received.
    public var writesSidecars = true
    /// When a live WAV stream continues in another file, which has a header of its own. The files of a stream follow
    /// one another without a gap. nil leaves it to the senders. Needs ``writesSidecars``.
    public var split: RecordingSplit?
    /// Which recordings get a link that carries their time, and how it is called; nil for none.
    public var names = RecordingNames(pattern: RecordingNames.standardPattern)
    /// Which complete recordings are removed; nil for none, ever. Needs ``writesSidecars``.
    public var retention: RecordingRetention?
    /// How often the server looks for such recordings, and for sidecars that the disk has refused.
    package var maintenancePause = Duration.seconds(60)
    /// Whether GET and HEAD are answered with complete recordings. A token gets the recordings that it began. Without
    /// tokens, everybody gets those that were begun without one. Requires ``writesSidecars``: the server knows its
    /// recordings by their sidecars.
    public var allowsDownloads = false
    /// How many recordings may be downloaded at once (503). Each takes up to 512 KiB of memory.
    public var maximumDownloadCount = 100
    /// The clock that their age is measured with.
    var retentionClock = RetentionState.Clock()
    /// The name and version of the software that sidecars name.
    public var software = "Sluice"
    /// Serves a request by a handler of one's own instead of the store; nil leaves it to the store. Called on a
    /// server's thread for each request, for an upload that goes on after a restart also without any, and by OPTIONS to
    /// find out which methods there are: it must not have effects, which is what
    /// ``HTTPServer/RequestHandler/begin(_:)`` is for.
    public var handler: @Sendable (RequestHead) -> (any RequestHandler)? = { _ in nil }

    /// The longest body of a request, in bytes; nil for no limit. A larger one is answered with 413.
    public var maximumBodyLength: UInt64?
    /// The longest request line and fields together, in bytes (431).
    public var maximumHeadLength = 16 * 1024
    /// The most fields of a request (431).
    public var maximumFieldCount = 100
    /// The largest hole that a request may leave in a stream, in bytes (409): a request claims it with a single field,
    /// so it is bounded by default. 64 GiB are four days of 16-bit stereo. A hole takes no room on the disk, but
    /// whoever copies or hashes the file reads all of it. It counts against the quotas like bytes that were sent.
    public var maximumHoleLength: UInt64 = 64 << 30

    /// How long a head may take from the connection, or its first byte, to its end; zero for no limit.
    public var headTimeout = Duration.seconds(30)
    /// How long a body may send nothing. Zero, for no limit, because the source of a live stream may be silent; peers
    /// whose machine has died are found by TCP keep-alive.
    public var bodyIdleTimeout = Duration.zero
    /// How long a connection is kept open for its next request.
    public var keepAliveTimeout = Duration.seconds(75)
    /// How long a client is given to read an answer that came before the end of its body.
    public var lingerTimeout = Duration.seconds(5)

    /// `SO_RCVBUF` of every connection, in bytes; nil leaves it to the kernel's tuning.
    public var receiveBufferSize: Int?
    /// `TCP_MAXSEG` of every connection, in bytes; nil leaves it to the path.
    public var maximumSegmentSize: Int?

    /// What tells a boot of the machine from the next one; nil asks the kernel.
    package var bootIdentifier: String?

    /// Told what happens to streams, on the server's thread: it must not block. With several threads, on each of them,
    /// perhaps at once.
    public var onEvent: @Sendable (ServerEvent) -> Void

    /// A server at these addresses.
    public init(
      listen: [ListenAddress], storage: Storage, onEvent: @escaping @Sendable (ServerEvent) -> Void = { _ in }
    ) {
      self.listen = listen
      self.storage = storage
      self.onEvent = onEvent
    }

    /// Of a server that stores streams as files of a directory.
    public init(
      listen: [ListenAddress], directory: String, onEvent: @escaping @Sendable (ServerEvent) -> Void = { _ in }
    ) {
      self.init(listen: listen, storage: .directory(directory), onEvent: onEvent)
    }
  }

  /// Where streams are stored.
  public enum Storage: Sendable, Equatable {
    /// As files of that directory. It is made if it is missing and its parent exists, and locked against other servers.
    case directory(String)
    /// Nowhere: everything is received and acknowledged, and no byte of it kept, for measuring what that costs. Streams
    /// and uploads are remembered in memory while they are unfinished, and a few of them for a while afterwards. Bytes
    /// that are sent again are not compared. A handler of one's own that is sent a resumable upload needs a directory:
    /// it is answered with 500.
    case discarding
    /// As messages of a JetStream stream, which any number of servers share: each answers any request for any upload.
    /// A byte is acknowledged when the brokers have acknowledged it. Of the limits, the sizes of uploads and requests
    /// apply. A handler of one's own gets plain requests; a resumable upload to it is answered with 500.
    case brokers(Brokers)
  }

  /// The brokers that keep uploads, and the stream that they keep them in.
  public struct Brokers: Sendable, Equatable {
    /// How the brokers are reached.
    public var options: BrokerOptions
    /// The name of the stream, and the first part of each upload's subject: letters, digits, `_` and `-`.
    public var stream: String
    /// How many brokers have each message, where the stream is created. A stream that exists must have as many.
    public var replicas: Int
    /// Who says when the brokers sync.
    public var witnesses = BrokerWitnesses()

    /// Brokers that keep uploads in `stream`.
    public init(_ options: BrokerOptions, stream: String = "sluice", replicas: Int = 1) {
      (self.options, self.stream, self.replicas) = (options, stream, replicas)
    }
  }
}
