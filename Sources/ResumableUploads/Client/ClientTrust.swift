// Whether an upload resource is one: a response has named it, and not every response is the server's.
//
// A captive portal or an odd proxy answers a creation with a 2xx or a 104, and its Location leads nowhere. So an upload
// resource is unproven until it reports an offset or accepts an append. The client leaves an unproven one that does not
// answer as one, and returns to what it knew before: the upload resource before it, or the target.

extension UploadClientStateMachine {
  /// How much a request to an unproven upload resource shows that it is none.
  enum Doubt: Int {
    /// Nobody answers there. In an outage, nobody answers anywhere.
    case silence = 1
    /// Something answers there, and not as an upload resource does.
    case answer = 4

    /// The client leaves at this sum: three answers.
    static let most = 12
  }

  /// Whether the client leaves the upload resource, which has not answered as one.
  var isDoubted: Bool { !isProven && doubts >= Doubt.most }

  mutating func doubt(_ doubt: Doubt) { if !isProven { doubts += doubt.rawValue } }

  /// Before the server has acknowledged a byte, other answers end the stream soon.
  mutating func doubt(_ answer: ClientAnswer) { if isOutage(answer) { doubt(.answer) } }

  /// The upload resource has reported an offset, or accepted an append.
  mutating func prove() {
    guard !isProven else { return }
    isProven = true
    former = []
  }

  /// The upload resource is where a response says.
  mutating func take(location: String) {
    if uploadURL == nil { notes += heldNotes + [.created(url: location, base: base)] }
    heldNotes = []
    uploadURL = location
    (hasCreated, placeRefusals) = (true, 0)
  }

  /// Leaves an unproven upload resource for the one before it, or for a new one with the same bytes.
  ///
  /// Nothing is acknowledged there, so every byte is still kept. If it turns out to exist, the server has some bytes
  /// twice.
  mutating func leaveUnproven(_ supply: Supply) -> Action {
    if !former.isEmpty {
      // The pause is over: what is left is asked at once.
      _ = returnToFormer()
      return retrieveOffset()
    }
    former = [self]
    isOptimistic = false
    partEnd = .unproven
    return beginPart(supply)
  }

  /// A creation has led to nothing: it is tried again, or what came before it is asked for once more.
  mutating func creationFailed() -> Action {
    // A server that takes no new upload may be one that does not know the old one for the same reason.
    announced == nil && !former.isEmpty ? returnToFormer() : wait(creationIsLost())
  }

  mutating func returnToFormer() -> Action {
    guard var former = former.first else { return wait(.offsetRetrieval) }
    former.sent = max(former.sent, sent)
    (former.detours, former.advances, former.isOptimistic, former.notes) = (detours, advances, false, notes)
    (former.doubts, former.reportedUpTo, former.placeRefusals) = (0, reportedUpTo, placeRefusals)
    // The client has left the one that it took in between.
    if uploadURL != nil, let url = former.uploadURL {
      former.restarts = restarts
      former.notes.append(.created(url: url, base: former.base))
    }
    self = former
    return wait(.offsetRetrieval)
  }
}
