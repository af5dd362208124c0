// Whose bytes a recording contains, as far as this must be recorded before all uploads of the earlier server are known.

internal import EventLoops
internal import StreamServing

extension StreamRegistry {
  /// The upload that stored bytes.
  struct Contributor {
    var owner: UploadOwner
    var isLive: Bool

    init(_ holder: any RecordingHolder) { (owner, isLive) = (holder.owner, holder.isLive) }

    /// Whether a recording still belongs to one upload only after `next` has continued it. Bytes of a live stream must
    /// not become those of a file, which may expire.
    func passesOn(to next: Contributor) -> Bool { owner == next.owner && (next.isLive || !isLive) }
  }

  /// The requests for a stream before all uploads of the earlier server were known.
  enum Taker {
    /// Uploads that may take over the recording of an earlier one.
    case uploads(first: Contributor, last: Contributor)
    /// An upload of this server began the recording, which belongs to this upload.
    case beginner
    case others
  }

  /// Records that the recording contains bytes of several uploads. It must not be removed with an upload of the earlier
  /// server that is not known yet, and the next server must not remove it either.
  private func share(_ name: StreamName) {
    if case .others? = takers[name] { return }
    takers[name] = .others
    record(.shared, on: name)
  }

  /// Records the end of an upload before all uploads of the earlier server are known. Otherwise, these and the next
  /// server would not learn whose bytes the recording contains.
  func recordEnd(of holder: any RecordingHolder, in name: StreamName, isSharer: Bool, discardsBytes: Bool) {
    guard discardsBytes else { return share(name) }
    // No upload that is unknown has written to a recording that began under this server.
    if case .beginner? = takers[name] { return }
    if isSharer { record(.discarded(by: holder.owner), on: name) }
  }

  private func record(_ note: RecordingNote, on name: StreamName) {
    do throws(SystemError) {
      try store.note(note, on: name)
    } catch {
      emit(
        ServerEvent(
          .warning,
          reason:
            "cannot record bytes of others in \(name.partial): \(error). After a restart, a DELETE may remove them."))
    }
  }

  /// Notes a request that takes the recording.
  func note(_ holder: (any RecordingHolder)?, isNew: Bool, takes name: StreamName) {
    switch (takers[name], holder.map { Contributor($0) }) {
    case (_, .some) where isNew: takers[name] = .beginner
    case (.beginner?, .some): break
    case (nil, let next?): takers[name] = .uploads(first: next, last: next)
    case (.uploads(let first, let last)?, let next?) where last.passesOn(to: next):
      takers[name] = .uploads(first: first, last: next)
    default: share(name)
    }
  }
}
