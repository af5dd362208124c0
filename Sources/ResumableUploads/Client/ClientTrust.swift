// Decides whether an upload resource is genuine. A response has named it, but not every response comes from the server.
//
// A captive portal or a faulty proxy answers a creation with a 2xx or a 104 whose Location leads nowhere. So an upload
// resource is unproven until it reports an offset or accepts an append. The client leaves an unproven one that does not
// answer as an upload resource, and returns to the previous upload resource or to the target.

extension UploadClientStateMachine {
  /// How strongly a failed request to an unproven upload resource suggests that it is not genuine.
  enum Doubt: Int {
    /// No answer. During an outage, nothing answers anywhere.
    case silence = 1
    /// An answer that is not an upload resource's.
    case answer = 4

    /// The client leaves at this sum, which three answers reach.
    static let most = 12
  }

  /// Whether the client leaves the upload resource because it has not answered as one.
  var isDoubted: Bool { !isProven && doubts >= Doubt.most }

  mutating func doubt(_ doubt: Doubt) { if !isProven { doubts += doubt.rawValue } }

  /// Other answers end the stream soon, as long as the server has not acknowledged a byte.
  mutating func doubt(_ answer: ClientAnswer) { if isOutage(answer) { doubt(.answer) } }

  /// The upload resource has reported an offset, or accepted an append.
  mutating func prove() {
    guard !isProven else { return }
    isProven = true
    former = []
  }

  /// A response has named the upload resource's URL.
  mutating func take(location: String) {
    if uploadURL == nil { notes += heldNotes + [.created(url: location, base: base)] }
    heldNotes = []
    uploadURL = location
    (hasCreated, placeRefusals) = (true, 0)
  }

  /// Leaves an unproven upload resource for the one before it, or for a new one with the same bytes.
  ///
  /// Nothing is acknowledged there, so every byte is still kept. If it exists after all, the server has some bytes
  /// twice.
  mutating func leaveUnproven(_ supply: Supply) -> Action {
    if !former.isEmpty {
      // The pause is over, so ask the previous upload resource at once.
      _ = returnToFormer()
      return retrieveOffset()
    }
    former = [self]
    isOptimistic = false
    partEnd = .unproven
    return beginPart(supply)
  }

  /// A creation has failed. The client repeats it, or asks the previous upload resource once more.
  mutating func creationFailed() -> Action {
    // A server that accepts no new upload may, for the same reason, not recognise the old one.
    announced == nil && !former.isEmpty ? returnToFormer() : wait(creationIsLost())
  }

  mutating func returnToFormer() -> Action {
    guard var former = former.first else { return wait(.offsetRetrieval) }
    former.sent = max(former.sent, sent)
    (former.detours, former.advances, former.isOptimistic, former.notes) = (detours, advances, false, notes)
    (former.doubts, former.reportedUpTo, former.placeRefusals) = (0, reportedUpTo, placeRefusals)
    // The client has left the one that it used in between.
    if uploadURL != nil, let url = former.uploadURL {
      former.restarts = restarts
      former.notes.append(.created(url: url, base: former.base))
    }
    self = former
    return wait(.offsetRetrieval)
  }
}
