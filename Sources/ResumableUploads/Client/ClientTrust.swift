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

  /// Other answers end the stream soon, as long as the server has not acknowledged a byte.
  mutating func noteDoubt(_ answer: ClientAnswer) { if isOutage(answer) { resource.doubt(.answer) } }

  /// The upload resource has reported an offset, or accepted an append.
  mutating func prove() {
    guard !resource.isProven else { return }
    resource.isProven = true
    parts.former = []
  }

  /// A response has named the upload resource's URL.
  mutating func take(location: String) {
    if resource.url == nil {
      reportMissing()
      notes += parts.heldNotes + [.created(url: location, base: base)]
    }
    parts.heldNotes = []
    resource.url = location
    (server.hasCreated, patience.placeRefusals) = (true, 0)
  }

  /// Leaves an unproven upload resource for the one before it, or for a new one with the same bytes.
  ///
  /// Nothing is acknowledged there, so every byte is still kept. If it exists after all, the server stores some bytes
  /// twice.
  mutating func leaveUnproven(_ supply: Supply) -> Action {
    if !parts.former.isEmpty {
      // The pause is over, so ask the previous upload resource at once.
      _ = returnToFormer()
      return retrieveOffset()
    }
    parts.former = [self]
    isOptimistic = false
    parts.end = .unproven
    return beginPart(supply)
  }

  /// A creation has failed. The client repeats it, or asks the previous upload resource once more.
  mutating func creationFailed() -> Action {
    // A server that accepts no new upload may, for the same reason, not recognise the old one.
    resource.announced == nil && !parts.former.isEmpty ? returnToFormer() : wait(creationIsLost())
  }

  mutating func returnToFormer() -> Action {
    guard var former = parts.former.first else { return wait(.offsetRetrieval) }
    former.sent = max(former.sent, sent)
    (former.advances, former.isOptimistic, former.notes) = (advances, false, notes)
    (former.patience.detours, former.patience.placeRefusals) = (patience.detours, patience.placeRefusals)
    former.patience.shortAppends = patience.shortAppends
    former.resource.doubts = 0
    former.highWater.keepReports(of: highWater)
    former.parts.missing = parts.missing
    // The client has left the one that it used in between.
    if resource.url != nil, let url = former.resource.url {
      former.patience.restarts = patience.restarts
      former.notes.append(.created(url: url, base: former.base))
    }
    self = former
    return wait(.offsetRetrieval)
  }
}
