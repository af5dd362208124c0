// A live stream and its stretch in the spool.

internal import EventLoops
internal import ResumableUploads
internal import SpooledStreams

/// Stores the data with which another process can continue the stream. Owned by the network loop's thread, and
/// unchecked for that reason.
final class SpoolLink: @unchecked Sendable {
  private let spool: StreamSpool
  private let stretch: SpooledStretch
  private var resumption: StretchResumption

  init(_ spool: StreamSpool, _ stretch: SpooledStretch, resumption: StretchResumption = StretchResumption()) {
    self.spool = spool
    self.stretch = stretch
    self.resumption = resumption
  }

  /// Notes the progress of the stream.
  ///
  /// - Parameter told: the offset at which another process continues, if the server itself reports none.
  func note(_ upload: ResumeData?, acknowledged told: UInt64?) {
    // Bytes that an earlier process has delivered to a plain server count until there is an upload resource.
    let acknowledged = told ?? (upload == nil ? resumption.acknowledged : nil)
    guard upload != resumption.upload || acknowledged != resumption.acknowledged else { return }
    // Without its upload resource, another process would send everything again.
    let isUrgent = upload != resumption.upload
    (resumption.upload, resumption.acknowledged) = (upload, acknowledged)
    stretch.note(resumption.text, isUrgent: isUrgent)
  }

  /// Plain uploads: the bytes before `offset` are about to be released here.
  func noteReleased(upTo offset: UInt64) {
    guard offset > resumption.acknowledged ?? 0 else { return }
    resumption.acknowledged = offset
    stretch.noteWithRelease(resumption.text)
  }

  /// The source has failed. Another process that sends the rest must not complete the stream either.
  func noteCutOff() {
    guard !resumption.isCutOff else { return }
    resumption.isCutOff = true
    stretch.note(resumption.text, isUrgent: true)
  }

  var isCutOff: Bool { resumption.isCutOff }

  func note(description: String) {
    guard description != resumption.description else { return }
    resumption.description = description
    stretch.note(resumption.text, isUrgent: false)
  }

  /// The number of bytes before position `head` that a power cut would destroy.
  func notSynchronized(upTo head: UInt64) -> UInt64 { stretch.notSynchronized(upTo: head) }

  /// Ends the stream.
  ///
  /// - Parameters:
  ///   - isDelivered: whether the stretch is no longer needed.
  ///   - done: called on the spool's thread with the number of bytes that the disk did not store.
  func end(isDelivered: Bool, then done: @escaping @Sendable (UInt64) -> Void) {
    spool.end(stretch, isDelivered: isDelivered, then: done)
  }
}
