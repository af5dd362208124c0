// A live stream and its stretch in the spool.

internal import EventLoops
internal import ResumableUploads
internal import SpooledStreams

/// Keeps what another process needs to go on with the stream. Owned by the network loop's thread; unchecked for that reason.
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

  func note(description: String) {
    guard description != resumption.description else { return }
    resumption.description = description
    stretch.note(resumption.text, isUrgent: false)
  }

  /// The stream is over.
  ///
  /// - Parameter isDelivered: whether nothing of the stretch is needed any more.
  func end(isDelivered: Bool, then done: @escaping @Sendable () -> Void) {
    spool.end(stretch, isDelivered: isDelivered, then: done)
  }
}
