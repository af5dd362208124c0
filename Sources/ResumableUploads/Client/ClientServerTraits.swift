// What the client has learned about the server, which holds for all upload resources of the stream.

extension UploadClientStateMachine {
  /// The server's version, limits and habits.
  struct ServerTraits: Sendable {
    var version: InteropVersion
    /// Whether the server was seen to support `version`.
    var isVersionSettled = false
    var limits = UploadLimits()
    /// The upload resource's lifetime in seconds, counted from the newest response that reported it.
    private var toldLifetime: UInt64?
    /// The maximum size of one append after the server refused a larger one.
    var shrunkAppendSize: UInt64?
    /// Whether the server joins the upload resources of one stream (its answer to a creation had `Stream-ID`).
    var joinsParts = false
    /// Whether a server has created an upload resource in this version.
    var hasCreated = false
    /// POST, if the server accepts no other method.
    var creationMethod: String?

    init(version: InteropVersion) { self.version = version }

    /// An answer has stated limits. Older ones stay where it has none.
    mutating func note(limits newer: UploadLimits) {
      limits = limits.updated(by: newer)
      toldLifetime = newer.maximumAge ?? toldLifetime
    }

    /// The lifetime, if an answer has reported it since the last call.
    mutating func takeLifetime() -> UInt64? {
      defer { toldLifetime = nil }
      return toldLifetime
    }
  }

  /// What the answers to OPTIONS and to creations have shown about the support for resumable uploads.
  struct Discovery: Sendable {
    /// Whether OPTIONS is under way because of the server's limits alone.
    var asksForLimits = false
    /// Whether OPTIONS was sent again after an answer that may not be the server's.
    var hasAskedTwice = false
    /// How often OPTIONS was answered with 500.
    var refusedQuestions = 0
    /// Whether the answer to OPTIONS offered resumable uploads.
    var isOffered = false
    /// How often a creation was nevertheless answered as a plain upload.
    var plainAnswers = 0
  }
}
