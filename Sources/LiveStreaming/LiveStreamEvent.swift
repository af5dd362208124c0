// Everything a stream tells about itself.

public import Digests
public import ResumableUploads
public import UploadClient

/// Something happened to a live stream. The last event is ``ended(_:)``.
public enum LiveStreamEvent: Sendable {
  /// A request begins at this stream offset; the first one at 0.
  case connecting(offset: UInt64, attempt: Int)
  /// A request has a connection, so long after it was asked for, and its head goes out. `isNew` unless the connection
  /// has carried a request before.
  case connected(isNew: Bool, after: Duration)
  /// The connection stands and the body is being sent.
  case streaming(offset: UInt64)
  /// This machine's TCP has taken everything before this stream offset; only if
  /// ``UploadClient/UploadRequest/tellsAccepted``. No order may be given to the streamer from within this event.
  case accepted(UInt64)
  /// A 1xx response came.
  case interimResponse(HTTPResponse)
  /// The final response to a request came, this long after the end of the request's content; nil if it came before that
  /// end.
  case response(status: Int, after: Duration?)
  /// The request ended before the stream: it goes on after a delay.
  case dropout(Dropout)
  /// Another attempt failed in the outage that began with the last dropout.
  case attemptFailed(Dropout)
  /// The buffer is full, and has begun to discard bytes that the server does not have: so many by now. Told once for
  /// each ``gap(_:)``, which follows when the stream continues.
  case discarding(UInt64)
  /// Bytes that will not reach the server.
  case gap(Gap)
  /// At the end of the stream, the server lacks this many bytes, in addition to those of every ``gap(_:)``. It does not
  /// say where.
  case missingAtServer(UInt64)
  /// Resumable uploads only: what happened to the upload resource.
  case upload(UploadNotice)
  /// Resumable uploads only: the server has kept everything before this stream offset that no ``gap(_:)`` names.
  case acknowledged(UInt64)
  /// Something that the source has to tell, e.g. an overrun of the sound card.
  case source(SourceEvent)
  /// How things stand, if ``LiveStreamConfiguration/progressInterval`` asks for it.
  case progress(StreamProgress)
  /// This many events came too fast for an observer of ``LiveStreamTask/events``, and are not reported to it.
  case missed(Int)
  /// The last event.
  case ended(StreamSummary)
}

/// Something happened to the upload resource that a stream goes into
/// (draft-ietf-httpbis-resumable-upload, section "Upload Resource").
public enum UploadNotice: Equatable, Sendable {
  /// It exists; the value is what another process needs to carry it on.
  case created(ResumeData)
  /// The server does not support resumable uploads; why, in words. The stream goes on as one plain request.
  case notSupported(String)
  /// The server speaks an older interop version.
  case steppedDown(version: Int?)
  /// The stream goes on in a new upload resource, from this stream offset on: the one before is `gone` (404, 410), full
  /// (`size`), too old (`expiry`), `completed` by the server, has lost bytes (`serverWentBack`), has bytes that were
  /// never sent (`impossibleOffset`), never answered as an upload resource (`unproven`), lacks bytes that are not kept
  /// here any more (`gap`), or precedes a time without bytes that is longer than the buffer (`pause`).
  case newPart(offset: UInt64, previous: String?, reason: String)
  /// The stream continues at this URL from this stream offset on: a request to the URL before would replace what is
  /// stored there, and the buffer no longer has the beginning of that. TCP had acknowledged `unconfirmed` bytes of it,
  /// and the server has not confirmed them.
  case nextURL(String, offset: UInt64, unconfirmed: UInt64)
  /// The server has less than it had acknowledged.
  case serverWentBack(from: UInt64, to: UInt64)
  /// The server claims bytes that were never sent. It is asked again.
  case impossibleOffset(UInt64)
  /// The server has the stream up to `offset`, and only the bytes before `kept` are kept here: a power cut took the
  /// others after an earlier process had sent them. The upload is completed at `offset`.
  case serverHasMore(offset: UInt64, kept: UInt64)
  /// The server's digest of what it has, up to this stream offset, is not the digest of what was sent.
  case digestMismatch(offset: UInt64)
}

/// The end of a request before the end of its stream.
public struct Dropout: Equatable, Sendable {
  /// What ended it.
  public enum Cause: Equatable, Sendable, CustomStringConvertible {
    /// The host has no address; why, in words.
    case unknownHost(String)
    /// No connection could be made; why, in words.
    case unreachable(String)
    /// The connection broke; how, in words.
    case connectionLost(String)
    /// The server did not answer in time, or TCP got no acknowledgement; which, in words.
    case timedOut(String)
    /// The server answered with this status, which allows trying again.
    case response(Int)
    /// The buffer was full and let bytes go that were about to be sent: the stream goes on behind them.
    case overtaken
    /// The connection was cut on purpose, by a load test.
    case cut
    /// Something else, in words.
    case other(String)

    /// The cause, in words.
    public var description: String {
      switch self {
      case .unknownHost(let words), .unreachable(let words), .connectionLost(let words), .timedOut(let words),
        .other(let words):
        words
      case .response(let status): "the server answered \(status)"
      case .overtaken: "the connection is slower than the source"
      case .cut: "the connection was cut on purpose"
      }
    }
  }

  /// What ended the request.
  public var cause: Cause
  /// What the server says of its answer, in one line of at most 200 characters
  /// (``UploadClient/HTTPResponse/reason``); nil where it says nothing, or did not answer.
  public var reason: String?
  /// Stream offset up to which the peer's TCP had acknowledged, or the server said that it has.
  public var acknowledged: UInt64
  /// Bytes that the peer's TCP had acknowledged in a request that the server then refused without saying what it has
  /// kept, and that are no longer kept here: perhaps lost.
  public var unconfirmed: UInt64 = 0
  /// How long until the next attempt.
  public var retryDelay: Duration
  /// Whether it belongs to an outage that was told before: nothing has gone forward since.
  public var isRepeated = false
}

/// Bytes of the stream that are lost, and why.
public struct Gap: Equatable, Sendable {
  /// Why bytes are lost.
  public enum Cause: String, Equatable, Sendable {
    /// The circular buffer was full and the oldest bytes had to go.
    case bufferFull
    /// The server has less than its TCP had acknowledged, and the rest is no longer kept here.
    case serverLost
  }

  /// Stream offset of the first byte lost.
  public var offset: UInt64
  /// How many bytes.
  public var length: UInt64
  /// Why they are lost.
  public var cause: Cause
}

/// What a source has to tell, as words and as numbers.
public struct SourceEvent: Equatable, Sendable {
  /// A short name for programs, e.g. `overrun`.
  public var kind: String
  /// A line for people.
  public var description: String
  /// Stream offset at which it happened.
  public var offset: UInt64
  /// How much was lost, in the source's ``unit``; 0 when nothing was.
  public var lost: UInt64 = 0
  /// How much the source should have produced, and did not, because the process did not run. Nothing of the stream is
  /// lost with it.
  public var skipped: UInt64 = 0
  /// What ``lost`` and ``skipped`` count.
  public var unit = Unit.frames
  /// How many bytes of silence stand in for them.
  public var filled: UInt64 = 0
  /// Within how many bytes of the stream all this happened, where that is not ``filled``; 0 otherwise.
  public var length: UInt64 = 0
  /// Whether something went wrong, as in an overrun; false for news of a healthy source.
  public var isTrouble = true

  /// What a source loses.
  public enum Unit: String, Sendable {
    /// Samples of all channels at one time.
    case frames
    /// Lines of a heartbeat.
    case beats
  }

  /// An event of a source, with the members of the same names.
  public init(
    kind: String, description: String, offset: UInt64, lost: UInt64 = 0, skipped: UInt64 = 0, unit: Unit = .frames,
    filled: UInt64 = 0, isTrouble: Bool = true
  ) {
    self.kind = kind
    self.description = description
    self.offset = offset
    self.lost = lost
    self.skipped = skipped
    self.unit = unit
    self.filled = filled
    self.isTrouble = isTrouble
  }
}

/// How a stream stands, in bytes: what was captured is acknowledged, lost, or still to be sent.
public struct StreamProgress: Equatable, Sendable {
  /// Since the start.
  public var elapsed: Duration
  /// What the source has produced.
  public var captured: UInt64
  /// Stream offset up to which bytes were handed to the network, in the current request or one before.
  public var sent: UInt64
  /// What the server has acknowledged: by its own word where uploads are resumable, else by its TCP.
  public var acknowledged: UInt64
  /// What will not reach the server: the buffer had no room for it, or the server did not keep it.
  public var lost: UInt64
  /// How many bytes the circular buffer holds, and how many it can.
  public var buffered: Int
  /// How many bytes the circular buffer can hold.
  public var capacity: Int
  /// Outages so far, however many attempts each took.
  public var dropouts: Int
  /// Whether a request is under way.
  public var isConnected: Bool

  /// How much of what was captured is acknowledged, from 0 to 1. Of a file, all of it counts as captured from the
  /// start.
  public var fractionCompleted: Double {
    captured == 0 ? 1 : Double(min(acknowledged, captured)) / Double(captured)
  }
  /// What was captured, is not lost, and is not acknowledged yet.
  public var unsent: UInt64 { captured - min(captured, settled) }
  /// Stream offset before which nothing is to be sent any more: all of it is acknowledged or lost.
  public var settled: UInt64 {
    let (sum, overflows) = acknowledged.addingReportingOverflow(lost)
    return overflows ? .max : sum
  }
}

/// How a stream ended.
public struct StreamSummary: Sendable {
  /// How the stream stood at its end.
  public var progress: StreamProgress
  /// How many gaps the stream has.
  public var gaps: Int
  /// Bytes sent more than once.
  public var resent: UInt64
  /// What the source has lost (overruns, unplugged device), in its own unit.
  public var sourceLost: UInt64
  /// What the source should have produced, and did not, in the same unit.
  public var sourceSkipped: UInt64 = 0
  /// What ``sourceLost`` and ``sourceSkipped`` count.
  public var sourceUnit = SourceEvent.Unit.frames
  /// The final response, when there was one.
  public var response: HTTPResponse?
  /// Bytes that are perhaps lost: see ``Dropout/unconfirmed`` and ``UploadNotice/nextURL(_:offset:unconfirmed:)``. They
  /// count as acknowledged.
  public var unconfirmed: UInt64 = 0
  /// Bytes that the server says are missing from what it has (`Stream-Missing`), if it says so; without what the source
  /// left out.
  public var missingAtServer: UInt64?
  /// Whether the stream went through resumable uploads.
  public var isResumable = false
  /// Bytes that the server does not have, and that the disk of the spool did not take, or not in time, or that are in a
  /// file that somebody has removed. Some may be in memory, where the next process finds them unless the machine
  /// restarts.
  public var notSynchronized: UInt64 = 0
  /// The upload resource that was left unfinished, for another process to carry on; nil without one.
  public var resumeData: ResumeData?
  /// Stream offset up to which the server's digest was equal to ours; nil if none was compared.
  public var verified: UInt64?
  /// The digest that the server was asked for; nil for none.
  public var digest: DigestAlgorithm?
  /// Why the stream ended before its source did; nil when the server has confirmed all of it.
  public var error: LiveStreamError?

  /// Whether some of what was to be streamed is lost, on whichever side.
  public var hasLoss: Bool { progress.lost > 0 || sourceLost > 0 || missingAtServer ?? 0 > 0 || unconfirmed > 0 }
}

/// Why a stream ended before its time.
public struct LiveStreamError: Error, Equatable, Sendable, CustomStringConvertible {
  /// What a program can act on.
  public enum Kind: String, Equatable, Sendable {
    /// The request cannot be sent as it is configured.
    case invalidRequest
    /// The server rejects the credentials (401, 403, 407).
    case notPermitted
    /// The server's certificate is not trusted.
    case notTrusted
    /// The server does not accept the stream.
    case refused
    /// The server does not follow the protocol.
    case protocolBroken
    /// The server does not speak HTTP/2, or what is in between breaks it, and the request was to go over nothing else.
    case http2NotSupported
    /// The server's `Location` leads from https to http, which is not followed; see
    /// ``LiveStreamConfiguration/keepsOrigin``.
    case insecureLocation
    /// Nothing was acknowledged for as long as ``RetryPolicy/giveUpAfter``.
    case unreachable
    /// The buffer was full and ``OverflowPolicy/stop`` was asked for.
    case overflow
    /// The source failed.
    case source
    /// The stream was cancelled.
    case cancelled
    /// Nothing was acknowledged for as long as ``LiveStreamer/finish(within:)`` allows.
    case unfinished
  }

  /// What helps, where a program has a setting for it.
  public enum Remedy: String, CaseIterable, Equatable, Sendable {
    /// ``UploadClient/UploadRequest/bearerToken`` or ``UploadClient/UploadRequest/netrcFile``.
    case credentials
    /// User and password in ``UploadClient/UploadRequest/proxy``.
    case proxyCredentials
    /// ``UploadClient/UploadRequest/certificateAuthorities``.
    case certificateAuthority
    /// ``UploadClient/UploadRequest/method``.
    case method
    /// ``UploadClient/UploadRequest/HTTPVersion/http1``.
    case http1
    /// ``LiveStreamConfiguration/ResumableUse/auto``.
    case plainUpload
    /// ``LiveStreamConfiguration/buffer`` and ``LiveStreamConfiguration/overflow``.
    case largerBuffer
  }

  /// What a program can act on.
  public var kind: Kind
  /// What failed, why, and what to do, in words for a person.
  public var description: String
  /// The setting that helps, for a program that names its own; nil where there is none.
  public var remedy: Remedy?

  /// An error with a description. Control characters in it are escaped.
  public init(_ kind: Kind, _ description: String, remedy: Remedy? = nil) {
    self.kind = kind
    // It may quote a server.
    self.description = printable(description)
    self.remedy = remedy
  }
}
