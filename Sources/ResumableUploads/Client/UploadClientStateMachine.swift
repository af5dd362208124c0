// The client's side of the protocol: which request comes next, and what each answer means.
//
// It follows the draft, and adapts to widely used servers that deviate from it. It sends HEAD before each continuation
// after an interruption, ignores impossible offsets, steps down to older versions, and infers completeness from answers
// that do not mention it.

package import HTTPMessages

/// The rules of one resumable upload, or of a series of them if a stream outlives its upload resource. Takes events and
/// returns actions. Has no I/O and no clock.
///
/// All offsets are stream offsets; an upload resource begins at ``base``, and its own offsets are counted from there.
package struct UploadClientStateMachine: Sendable {
  package struct Configuration: Equatable, Sendable {
    /// Whether to ask the target by OPTIONS first, and to report it if the target does not support resumable uploads.
    package var discovers = true
    /// Whether only a server with resumable uploads may complete the upload. An answer without any field of the
    /// protocol then completes nothing, because it may come from a plain server or a portal.
    package var requiresProtocol = false
    /// Whether the caller limits the time of refusals itself, including those before the first acknowledged byte. See
    /// ``UploadClientStateMachine/isRefusal(_:)``.
    package var retriesRefusals = false
    /// Whether to send everything with the creation, which becomes resumable on the way (section "Optimistic Upload
    /// Creation"). Requires a stream that can be sent again from its beginning.
    package var isOptimistic = false
    /// The length of the whole stream in bytes, if known.
    package var length: UInt64?
    /// The creation's method, if POST may replace it when the server accepts no other; nil if nothing may.
    package var replaceableMethod: String?
    /// The version to try first.
    package var version = InteropVersion.newest
    /// Whether the user's fields make the requests conditional, so that a 412 may mean that the condition is false.
    package var hasCondition = false
    /// The maximum size of one append in bytes.
    package var appendSize: UInt64?
    /// The smallest limit per request, or per upload resource, with which the client begins an upload that requires
    /// several. With a smaller limit, the client would flood the server with requests.
    package var smallestLimit: UInt64 = 0
    /// Identifies the stream across its upload resources, for servers that join them.
    package var streamID: String?
    /// The digest to request from the server (RFC 9530), such as `sha-256`.
    package var digestAlgorithm: String?
    /// The digest of the whole stream, if known beforehand, so that the server can verify it.
    package var digest: DigestField?

    package init() {}
  }

  package enum State: Equatable, Sendable {
    case idle
    case discovering
    case creating
    /// The offset is known, but there is nothing to append yet.
    case ready
    case appending(Append)
    case retrievingOffset
    /// Nothing is under way; ``UploadClientStateMachine/goOn(_:)`` is due after a delay.
    case interrupted(Next)
    /// For this reason.
    case cancelling(ClientFailure)
    case ended
  }

  package struct Append: Equatable, Sendable {
    package var start: UInt64
    package var completes: Bool
    /// The upload resource ends here, but the stream does not.
    package var endsPart = false
    /// The upload is already complete. The client only requests its lost final response.
    package var isReplay = false
    /// The minimum size of its content in bytes, unless the stream ends.
    package var minimum: UInt64 = 0
  }

  package enum Next: Equatable, Sendable { case discovery, creation, offsetRetrieval }

  package enum Action: Equatable, Sendable {
    case none
    case send(ClientRequest)
    /// Call ``UploadClientStateMachine/bytesAreReady(_:)`` when the stream reaches this offset, or has ended.
    case awaitBytes(upTo: UInt64)
    /// Call ``UploadClientStateMachine/goOn(_:)`` after a delay.
    case wait
    /// The server does not support resumable uploads, and nothing was sent yet. The value is the reason.
    case unsupported(String)
    /// The server has the whole stream.
    case completed
    /// The server has every byte of a stream whose source failed. The upload resource stays incomplete.
    case leftIncomplete
    case fail(ClientFailure)
  }

  // The fields that each acknowledgement needs come first: with thousands of uploads, each further cache line costs a
  // memory access.

  /// Stream offset of the upload resource's first byte.
  package internal(set) var base: UInt64 = 0
  /// Stream offset up to which bytes are acknowledged. These need not be kept.
  package internal(set) var acknowledged: UInt64 = 0
  /// How often the server was seen to have more than before, in whichever answer.
  package internal(set) var advances: UInt64 = 0
  /// One past the highest byte ever handed to the network.
  package internal(set) var sent: UInt64 = 0
  var highWater = HighWater()
  var patience = Patience()
  var notes: [ClientNote] = []
  package internal(set) var state = State.idle
  var server: ServerTraits
  var resource = Resource()
  var discovery = Discovery()
  var parts = Parts()
  /// The maximum size of the append under way. After a 413 to a creation with content, the size that was refused.
  var appendMaximum: UInt64?
  /// Whether another process has begun the upload.
  var isResumed = false
  /// Whether the next creation sends everything.
  var isOptimistic: Bool
  /// The failure with which the last answer would have ended the upload, if the caller did not limit the time of such
  /// answers. Nil after any other answer.
  package internal(set) var toleratedFailure: ClientFailure?
  let configuration: Configuration

  package var version: InteropVersion { server.version }
  /// Whether the server was seen to support ``version``.
  package var isVersionSettled: Bool { server.isVersionSettled }
  package var limits: UploadLimits { server.limits }
  /// POST, if the server accepts no other method.
  package var creationMethod: String? { server.creationMethod }
  /// The upload resource's absolute URL.
  package var uploadURL: String? { resource.url }
  /// Stream offset up to which another process need not know what was lost. A new upload resource begins after a gap.
  /// Until it exists, that process must find the gap again, and not take it for bytes that the server has lost.
  package var releasable: UInt64 {
    guard resource.url == nil, acknowledged <= highWater.gap.upperBound else { return acknowledged }
    return min(acknowledged, highWater.gap.lowerBound)
  }
  /// Whether the server has nothing left to continue: it has stored everything, has removed the upload, or has stored
  /// wrong bytes.
  package var isForgotten: Bool { resource.isForgotten }
  /// Whether a server has created an upload resource for this process.
  package var hasCreated: Bool { server.hasCreated }

  /// After this number of denials, HEAD's report that the upload is complete counts.
  static let maximumDenials = 3
  /// More detours than this without progress are useless.
  static let maximumDetours = 8
  /// Detours made at once. Further ones follow a pause, because a misbehaving front end does so for seconds.
  static let immediateDetours = 2
  /// Enough to halve any size down to one.
  static let maximumShrinks = 64
  /// After this number of creations that were answered as plain uploads, the offer counts as a mistake.
  static let mostPlainAnswers = 4

  package init(_ configuration: Configuration) {
    self.configuration = configuration
    server = ServerTraits(version: configuration.version)
    isOptimistic = configuration.isOptimistic
  }

  /// Returns the notes since the last call.
  package mutating func takeNotes() -> [ClientNote] {
    defer { notes = [] }
    return notes
  }

  /// How long the upload resource will live (`max-age`), in seconds, counted from the response that was handled last.
  /// Nil if that response did not report it.
  package mutating func takeLifetime() -> UInt64? {
    server.takeLifetime()
  }

  // MARK: Beginning and ending

  /// Begins a stream, or continues one of another process in a new upload resource.
  ///
  /// - Parameter acknowledged: the stream offset up to which the server has acknowledged the stream to that process.
  package mutating func start(_ supply: Supply, after acknowledged: UInt64 = 0) -> Action {
    // Bytes that the other process has delivered may no longer be kept here.
    base = min(acknowledged, supply.head)
    (self.acknowledged, highWater.acknowledged, highWater.reported) = (base, base, base)
    return configuration.discovers && !isOptimistic ? discoverOrCreate(supply) : create(supply)
  }

  /// Resumes an upload resource that another process has left.
  ///
  /// - Parameters:
  ///   - acknowledged: the stream offset up to which the server has acknowledged the stream to that process, if this is
  ///     known.
  ///   - joinsParts: whether the server has said to that process that it joins the parts of the stream.
  package mutating func resume(
    url: String, base: UInt64, version: InteropVersion, acknowledged: UInt64 = 0, joinsParts: Bool = false
  ) -> Action {
    (self.base, sent) = (base, .max)
    resource = Resource(url: url, offset: base)
    self.acknowledged = max(base, acknowledged)
    highWater.acknowledged = acknowledged
    (server.version, server.isVersionSettled, server.joinsParts) = (version, true, joinsParts)
    (resource.isProven, isResumed) = (true, true)
    return retrieveOffset()
  }

  /// Asks the server to remove the upload (section "Upload Cancellation").
  package mutating func cancel() -> Action { abandon(.cancelled) }

  /// Abandons the upload for a reason, and cancels it on the server.
  mutating func abandon(_ reason: ClientFailure) -> Action {
    guard let url = resource.currentURL else { return fail(reason) }
    state = .cancelling(reason)
    return .send(request(.cancellation, url: url, content: .absent))
  }

  /// The delay after ``Action/wait`` is over. Returns a request or the end, and never another delay.
  package mutating func goOn(_ supply: Supply) -> Action {
    guard case .interrupted(let next) = state else { return .none }
    switch next {
    case .discovery: return discoverOrCreate(supply)
    case .creation: return create(supply)
    case .offsetRetrieval: return resource.isDoubted ? leaveUnproven(supply) : retrieveOffset()
    }
  }

  package mutating func bytesAreReady(_ supply: Supply) -> Action { state == .ready ? append(supply) : .none }

  /// The upload resource's lifetime (`max-age`) is about to end. A new one follows the next answer.
  package mutating func expiresSoon() -> Bool {
    // A representation of known length is a single upload, however long it lives. An upload without progress in its
    // lifetime would be followed by another without progress.
    guard resource.url != nil, parts.end == nil, configuration.length == nil, acknowledged > base else { return false }
    parts.end = .expiry
    return true
  }

  /// Content up to `cursor` was handed over, in the request under way or in one that was aborted.
  package mutating func wrote(upTo cursor: UInt64) { sent = max(sent, cursor) }

  /// The request under way has ended without a response.
  package mutating func interrupted(sentUpTo: UInt64) -> Action {
    sent = max(sent, sentUpTo)
    switch state {
    case .discovering: return wait(.discovery)
    case .creating:
      resource.awaitsFinalResponse = isOptimistic && resource.announced != nil && sentUpTo == configuration.length
      return creationFailed()
    case .appending(let append):
      resource.doubt(.silence)
      if append.completes, !append.endsPart, sentUpTo == append.start + (appendMaximum ?? 0) {
        resource.awaitsFinalResponse = true
      }
      return wait(.offsetRetrieval)
    case .retrievingOffset:
      resource.doubt(.silence)
      return wait(.offsetRetrieval)
    case .cancelling(let reason): return fail(reason)
    case .idle, .ready, .interrupted, .ended: return .none
    }
  }

  /// The request under way could not be sent, for a reason on this machine. Unlike ``interrupted(sentUpTo:)``, this
  /// shows nothing about the server, so the client only sends a request again after a delay.
  package mutating func couldNotSend() -> Action {
    let next: Next
    switch state {
    case .discovering: next = .discovery
    case .creating: next = .creation
    case .appending, .retrievingOffset: next = .offsetRetrieval
    case .cancelling(let reason): return fail(reason)
    case .idle, .ready, .interrupted, .ended: return .none
    }
    state = .interrupted(next)
    return .wait
  }

  /// OPTIONS got no answer. That does not mean that the server lacks support. Creating an upload shows it.
  package mutating func questionIsUnanswered(_ supply: Supply) -> Action {
    guard state == .discovering else { return .none }
    guard discovery.asksForLimits else { return create(supply) }
    discovery.asksForLimits = false
    return resource.url == nil ? create(supply) : retrieveOffset()
  }

  mutating func wait(_ next: Next) -> Action {
    state = .interrupted(next)
    // A redirect was temporary, or its target does not work. Ask the first URL again.
    resource.diversion = nil
    return .wait
  }

  mutating func fail(_ failure: ClientFailure) -> Action {
    state = .ended
    resource.isForgotten = resource.isForgotten || failure.isFinal
    return .fail(failure)
  }

  mutating func acknowledge(upTo offset: UInt64) {
    guard offset > acknowledged else { return }
    acknowledged = offset
    highWater.acknowledged = max(highWater.acknowledged, offset)
    forgetImpossibleSize()
    noteAdvance(to: offset)
  }

  /// The server has stored everything before `offset`.
  mutating func noteAdvance(to offset: UInt64) {
    // A new upload that begins behind lost bytes has stored none yet.
    guard offset > base else { return }
    // Progress means bytes that were never there before, or bytes sent once more after the server forgot them.
    // Otherwise a server that forgets repeatedly would receive the same bytes forever.
    if offset > highWater.shown {
      highWater.shown = offset
      patience.renew()
      advances &+= 1
    } else if patience.restarts == 1, offset > highWater.sinceRestart {
      highWater.sinceRestart = offset
      advances &+= 1
    }
  }
}
