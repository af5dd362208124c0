// The events of a stream.

public import Digests
public import EventLoops
public import ResumableUploads
public import UploadClient

/// An event of a live stream. The last event is ``ended(_:)``.
public enum LiveStreamEvent: Sendable {
  /// A request begins at this stream offset. The first one begins at 0.
  case connecting(offset: UInt64, attempt: Int)
  /// A request has a connection, and its head is sent. `after` is the time since the request for a connection. `isNew`
  /// is false if the connection carried a request before.
  case connected(isNew: Bool, after: Duration)
  /// The connection is established, and the body is being sent.
  case streaming(offset: UInt64)
  /// This machine's TCP has accepted all bytes before this stream offset. Reported only if
  /// ``UploadClient/UploadRequest/tellsAccepted`` is set. Do not call the streamer while you handle this event.
  case accepted(UInt64)
  /// A 1xx response arrived.
  case interimResponse(HTTPResponse)
  /// The final response to a request arrived. `after` is the time since the end of the request's content, or nil if the
  /// response came before that end.
  case response(status: Int, after: Duration?)
  /// An outage begins: the request ended before the stream. Another attempt follows after a delay.
  case outage(FailedAttempt)
  /// Another attempt failed in the same outage.
  case attemptFailed(FailedAttempt)
  /// The buffer is full, and has begun to discard bytes that the server has not stored. The value is the number of
  /// bytes so far. Reported once for each ``gap(_:)``, which follows when the stream reaches these bytes or
  /// ends. With a spool, the buffer is full if the disk refuses bytes or is too slow.
  case discarding(UInt64)
  /// Bytes that will not reach the server.
  case gap(Gap)
  /// At the end of the stream, the server lacks this many bytes, in addition to those of every ``gap(_:)``. It does not
  /// report their offsets.
  case missingAtServer(UInt64)
  /// Resumable uploads only: an event of the upload resource.
  case upload(UploadNotice)
  /// Resumable uploads only: the server has stored all bytes before this stream offset, except those of a ``gap(_:)``.
  case acknowledged(UInt64)
  /// An event of the source, such as an overrun of the sound card.
  case source(SourceEvent)
  /// The progress, at the interval of ``LiveStreamConfiguration/progressInterval``.
  case progress(StreamProgress)
  /// This many events were too fast for an observer of ``LiveStreamTask/events``, and are not reported to it.
  case missed(Int)
  /// The last event.
  case ended(StreamSummary)
}

/// An event of the upload resource of a stream (draft-ietf-httpbis-resumable-upload, section "Upload Resource").
public enum UploadNotice: Equatable, Sendable {
  /// The upload resource exists. The value is the data with which another process can continue it.
  case created(ResumeData)
  /// The server does not support resumable uploads, for this reason. The stream continues as one plain request.
  case notSupported(String)
  /// The server uses an older interop version.
  case steppedDown(version: Int?)
  /// The stream continues in a new upload resource, at this stream offset. The previous one is `gone` (404, 410), has
  /// reached its maximum size (`size`), has expired (`expiry`), is reported as `completed` by the server, has lost
  /// bytes (`serverWentBack`), reports bytes that were never sent (`impossibleOffset`), never answered as an upload
  /// resource (`unproven`), lacks bytes that the buffer no longer contains (`gap`), or precedes a time without bytes
  /// that is longer than the buffer (`pause`).
  case newPart(offset: UInt64, previous: String?, reason: String)
  /// The stream continues at this URL and this stream offset. A request to the previous URL would replace the bytes
  /// that are stored there, and the buffer no longer contains their beginning. TCP had acknowledged `unconfirmed` bytes
  /// of them that the server has not confirmed.
  case nextURL(String, offset: UInt64, unconfirmed: UInt64)
  /// The server has stored fewer bytes than it had acknowledged.
  case serverWentBack(from: UInt64, to: UInt64)
  /// The server reports an offset beyond the last sent byte. It is asked again.
  case impossibleOffset(UInt64)
  /// The server has stored the stream up to `offset`, and the spool contains only the bytes before `kept`. A power cut
  /// removed the others after an earlier process had sent them. The upload is completed at `offset`.
  case serverHasMore(offset: UInt64, kept: UInt64)
  /// The server's digest up to this stream offset differs from the digest of the sent bytes.
  case digestMismatch(offset: UInt64)
}

/// The end of a request before the end of its stream or download.
public struct FailedAttempt: Equatable, Sendable {
  /// The cause of the end.
  public enum Cause: Equatable, Sendable, CustomStringConvertible {
    /// The host has no address, with details in words.
    case unknownHost(String)
    /// No connection could be established, with details in words.
    case unreachable(String)
    /// The connection was lost, with details in words.
    case connectionLost(String)
    /// The server did not answer in time, or TCP got no acknowledgement, with details in words.
    case timedOut(String)
    /// The server answered with this status, which allows another attempt.
    case response(Int)
    /// The buffer was full and discarded bytes that were about to be sent. The stream continues after them.
    case overtaken
    /// A load test cut the connection on purpose.
    case cut
    /// This machine refused what the request requires, such as a descriptor.
    case machine(SystemError)
    /// Another cause, in words.
    case other(String)

    /// Whether the server answered, and not with success.
    var isRefusal: Bool {
      if case .response(let status) = self { !(200..<300).contains(status) } else { false }
    }

    /// The cause, in words.
    public var description: String {
      switch self {
      case .unknownHost(let words), .unreachable(let words), .connectionLost(let words), .timedOut(let words),
        .other(let words):
        words
      case .response(let status): "the server answered \(status)"
      case .overtaken: "the connection is slower than the source"
      case .cut: "the connection was cut on purpose"
      case .machine(let error): error.description
      }
    }
  }

  /// What ended the request.
  public var cause: Cause
  /// The server's explanation of its response, in one line of at most 200 characters
  /// (``UploadClient/HTTPResponse/reason``). Nil if there is none.
  public var reason: String?
  /// The stream offset up to which the peer's TCP had acknowledged, or that the server reported. For a download, the
  /// number of bytes that exist.
  public var acknowledged: UInt64
  /// The number of bytes that may be lost. The peer's TCP had acknowledged them in a request that the server then
  /// refused without reporting its offset, and the buffer no longer contains them.
  public var unconfirmed: UInt64 = 0
  /// The time until the next attempt.
  public var retryDelay: Duration
  /// The scheme, host and port of the failed request if they are not yours, because the server's `Location` named them.
  /// If that host is unreachable, correct the server's public URL, or set ``LiveStreamConfiguration/keepsOrigin``.
  public var locationOrigin: String?
  /// Whether the failure belongs to an outage that was already reported, without progress since then.
  public var isRepeated = false

  package init(
    cause: Cause, reason: String? = nil, acknowledged: UInt64, unconfirmed: UInt64 = 0, retryDelay: Duration,
    isRepeated: Bool = false
  ) {
    (self.cause, self.reason, self.acknowledged, self.unconfirmed) = (cause, reason, acknowledged, unconfirmed)
    (self.retryDelay, self.isRepeated) = (retryDelay, isRepeated)
  }
}

/// Lost bytes of the stream, and the cause.
public struct Gap: Equatable, Sendable {
  /// Why bytes are lost.
  public enum Cause: String, Equatable, Sendable {
    /// The circular buffer was full, and the oldest bytes were discarded.
    case bufferFull
    /// The server has stored fewer bytes than its TCP had acknowledged, and the buffer no longer contains the rest.
    case serverLost
  }

  /// The stream offset of the first lost byte.
  public var offset: UInt64
  /// The number of lost bytes.
  public var length: UInt64
  /// The cause of the loss.
  public var cause: Cause
}

/// An event of a source, in words and in numbers.
public struct SourceEvent: Equatable, Sendable {
  /// A short name for programs, such as `overrun`.
  public var kind: String
  /// One line of text to display.
  public var description: String
  /// The stream offset of the event.
  public var offset: UInt64
  /// The lost amount, in the source's ``unit``. 0 if nothing was lost.
  public var lost: UInt64 = 0
  /// The amount that the source did not produce because the process did not run, or the machine slept. No bytes of the
  /// stream are lost.
  public var skipped: UInt64 = 0
  /// The unit of ``lost`` and ``skipped``.
  public var unit = Unit.frames
  /// The number of bytes of silence that replace the lost amount.
  public var filled: UInt64 = 0
  /// The length of the affected part of the stream in bytes, if it differs from ``filled``. Otherwise 0.
  public var length: UInt64 = 0
  /// Whether the event is a problem, such as an overrun. False for information about a healthy source.
  public var isTrouble = true

  /// The unit of the losses of a source.
  public enum Unit: String, Sendable {
    /// Samples of all channels at one time.
    case frames
    /// Lines of a heartbeat.
    case beats
  }

  /// Creates an event of a source, with the members of the same names.
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

/// The progress of a stream in bytes. Each captured byte is acknowledged, lost, or unsent.
public struct StreamProgress: Equatable, Sendable {
  /// The time since the start.
  public var elapsed: Duration
  /// The bytes that the source has produced.
  public var captured: UInt64
  /// The stream offset up to which the stream was passed to the network, in the current request or an earlier one. It
  /// is not a number of bytes: lost bytes before it count, whether or not a request contained them.
  public var sent: UInt64
  /// The bytes that the server has acknowledged. With resumable uploads, the server itself acknowledges them, otherwise
  /// its TCP.
  public var acknowledged: UInt64
  /// The bytes that will not reach the server, because the buffer had no room or the server did not store them. Damaged
  /// bytes of a spool count when the stream reaches them.
  public var lost: UInt64
  /// The number of bytes in the circular buffer.
  public var buffered: Int
  /// The capacity of the circular buffer in bytes. 0 for a file.
  ///
  /// It is larger than ``LiveStreamConfiguration/buffer``. Unless resumable uploads are required, it includes
  /// ``LiveStreamConfiguration/retention``, and over HTTPS or HTTP/2 also the bytes that libcurl may hold. It is
  /// rounded up as ``StreamBuffers/CircularBuffer/make(capacity:overflow:memory:allowsPauses:)`` describes. With a
  /// spool, it is the sum of the buffer and the space on disk. With a ``RepeatableSource``, it equals the buffer.
  public var capacity: Int
  /// The number of outages so far. An outage with several attempts counts once.
  public var outageCount: Int
  /// Whether a request is in progress.
  public var isConnected: Bool
  /// The number of bytes per second of a source with a constant rate. Nil for others.
  public var bytesPerSecond: Int?

  /// The acknowledged fraction of the captured bytes, from 0 to 1. For a file, all bytes count as captured from the
  /// start.
  public var fractionCompleted: Double {
    captured == 0 ? 1 : Double(min(acknowledged, captured)) / Double(captured)
  }
  /// The captured bytes that are neither lost nor acknowledged.
  public var unsent: UInt64 { captured - min(captured, settled) }
  /// The number of bytes that are acknowledged or lost. Without a spool, all bytes before this stream offset are one or
  /// the other. A spool may lose bytes and keep earlier ones.
  public var settled: UInt64 {
    let (sum, overflows) = acknowledged.addingReportingOverflow(lost)
    return overflows ? .max : sum
  }
}

/// The state in which a server keeps a stream whose source failed.
public enum RecordingState: String, Equatable, Sendable {
  /// The upload resource is incomplete, so the recording does not claim that the stream has ended.
  case unfinished
  /// The server counts the recording as complete. A request without resumable uploads cannot state that its source
  /// failed, and the server would discard or distrust a request that is cut off.
  case complete
}

/// The result of a stream.
public struct StreamSummary: Sendable, CustomStringConvertible {
  /// The progress at the end of the stream.
  public var progress: StreamProgress
  /// The number of gaps in the stream.
  public var gaps: Int
  /// Bytes sent more than once.
  public var resent: UInt64
  /// The amount that the source has lost (overruns, unplugged device), in its own unit.
  public var sourceLost: UInt64
  /// The amount that the source did not produce because the process did not run or the machine slept, in the same unit.
  public var sourceSkipped: UInt64 = 0
  /// The unit of ``sourceLost`` and ``sourceSkipped``.
  public var sourceUnit = SourceEvent.Unit.frames
  /// The final response, if there was one.
  public var response: HTTPResponse?
  /// Why the body of ``response`` is incomplete. Nil if it is complete, or if its end was not awaited.
  package var responseFailure: UploadError?
  /// The number of bytes that may be lost. See ``FailedAttempt/unconfirmed`` and
  /// ``UploadNotice/nextURL(_:offset:unconfirmed:)``. They count as acknowledged.
  public var unconfirmed: UInt64 = 0
  /// The number of bytes that the server reports as missing (`Stream-Missing`), without those that the source omitted.
  /// Nil if it reports none.
  public var missingAtServer: UInt64?
  /// Whether the stream used resumable uploads.
  public var isResumable = false
  /// The number of bytes that neither the server nor the disk of the spool has. The disk refused them or was too slow,
  /// the session closed before the disk had them, or their file was removed. Some may be in memory, where the next
  /// process finds them unless the machine restarts. Bytes that count as lost are not among them.
  public var notSynchronized: UInt64 = 0
  /// The data with which another process can continue the unfinished upload resource. Nil without one.
  public var resumeData: ResumeData?
  /// The stream offset up to which the server's digest matched. Nil if none was compared.
  public var verified: UInt64?
  /// The stream offset at which the verified bytes begin. It is more than 0 if the stream continued in another upload
  /// resource, because a digest covers only the bytes of one.
  public var verifiedFrom: UInt64 = 0
  /// The digest that was requested from the server. Nil for none.
  public var digest: DigestAlgorithm?
  /// The state of the recording if the source failed and the server has all bytes. Nil otherwise, and if the upload
  /// stays incomplete without a byte.
  public var recording: RecordingState?
  /// The reason why the stream ended early. Nil if the server has confirmed all of it.
  public var error: LiveStreamError?

  /// One line: `1048576 bytes acknowledged in 60.25 s, 1 outage, 0 bytes lost; the server answered 201`.
  public var description: String {
    let unit = String(sourceUnit.rawValue.dropLast())
    let source = sourceLost > 0 ? ", \(counted(sourceLost, unit)) lost at the source" : ""
    let end =
      error.map { "; \($0.kind): \($0)" } ?? response.map { "; the server answered \($0.status)" } ?? ""
    return "\(counted(progress.acknowledged, "byte")) acknowledged in \(progress.elapsed.inSeconds), "
      + "\(counted(progress.outageCount, "outage")), \(counted(progress.lost, "byte")) lost" + source + end
  }

  /// Whether any bytes were lost, at the source, in the stream or at the server.
  public var hasLoss: Bool { progress.lost > 0 || sourceLost > 0 || missingAtServer ?? 0 > 0 || unconfirmed > 0 }
}

/// The reason why a stream ended early.
public struct LiveStreamError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The classes of errors that a program can handle.
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
    /// The server does not support HTTP/2, or an intermediary breaks it, and the request requires HTTP/2.
    case http2NotSupported
    /// The server's `Location` leads from https to http, and is not followed. See
    /// ``LiveStreamConfiguration/keepsOrigin``.
    case insecureLocation
    /// Nothing was acknowledged for ``RetryPolicy/giveUpAfter``.
    case unreachable
    /// The buffer was full, and the policy was ``OverflowPolicy/stop``.
    case overflow
    /// The source failed.
    case source
    /// The stream was cancelled.
    case cancelled
    /// Nothing was acknowledged within the limit of ``LiveStreamer/finish(within:)``. Or a server without resumable
    /// uploads has confirmed the stream, and lacks bytes that the spool still has.
    case unfinished
  }

  /// The setting that may help.
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

  /// The class of the error.
  public var kind: Kind
  /// The failure, its reason and the remedy, as human-readable text.
  public var description: String
  /// The setting that may help, for programs with their own names for it. Nil if there is none.
  public var remedy: Remedy?
  /// Whether the file of an upload has changed since it was opened.
  package var isFileChanged = false
  /// The reason of this machine for the last failed attempt, such as a missing descriptor. Nil if the network or the
  /// server is the reason.
  public var machineError: SystemError?

  /// Creates an error with a description. Control characters in it are escaped.
  public init(_ kind: Kind, _ description: String, remedy: Remedy? = nil) {
    self.kind = kind
    // It may contain text from a server.
    self.description = printable(description)
    self.remedy = remedy
  }
}
