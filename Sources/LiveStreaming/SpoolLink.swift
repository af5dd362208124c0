// A live stream and its stretch in the spool.

internal import EventLoops
internal import ResumableUploads
internal import SpooledStreams

/// Keeps what another process needs to go on with the stream. Owned by the network loop's thread; unchecked for that
/// reason.
final class SpoolLink: @unchecked Sendable {
  private let spool: StreamSpool
  private let stretch: SpooledStretch
  private var resumption: StretchResumption

  init(_ spool: StreamSpool, _ stretch: SpooledStretch, resumption: StretchResumption = StretchResumption()) {
    self.spool = spool
    self.stretch = stretch
    self.resumption = resumption
  }

  /// Notes how far the stream has come.
  ///
  /// - Parameter acknowledged: by TCP, where nothing better is known.
  func note(_ upload: ResumeData?, acknowledged: UInt64?) {
    guard upload != resumption.upload || acknowledged != resumption.acknowledged else { return }
    // Without its upload resource, another process would send everything once more.
    let isUrgent = upload != resumption.upload
    (resumption.upload, resumption.acknowledged) = (upload, acknowledged)
    stretch.note(resumption.text, isUrgent: isUrgent)
  }

  /// Plain uploads: what is before `offset` is about to be given up here.
  func noteReleased(upTo offset: UInt64) {
    guard offset > resumption.acknowledged ?? 0 else { return }
    resumption.acknowledged = offset
    stretch.noteWithRelease(resumption.text)
  }

  func note(description: String) {
    guard description != resumption.description else { return }
    resumption.description = description
    stretch.note(resumption.text, isUrgent: false)
  }

  /// How many of the bytes before position `head` a power cut would take.
  func notSynchronized(upTo head: UInt64) -> UInt64 { stretch.notSynchronized(upTo: head) }

  /// The stream is over.
  ///
  /// - Parameters:
  ///   - isDelivered: whether nothing of the stretch is needed any more.
  ///   - done: called on the spool's thread, with the number of bytes that the disk did not take.
  func end(isDelivered: Bool, then done: @escaping @Sendable (UInt64) -> Void) {
    spool.end(stretch, isDelivered: isDelivered, then: done)
  }
}
