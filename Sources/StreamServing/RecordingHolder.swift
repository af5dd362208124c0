// How an upload and its recording notify each other.

package import EventLoops

/// An upload resource as its recording sees it.
package protocol RecordingHolder: AnyObject {
  /// Whether the recording is removed with the upload, because it contains only bytes of one owner's uploads.
  var ownsFile: Bool { get }
  /// Whether the recording belongs to a live stream, so that age does not remove it.
  var isLive: Bool { get }
  /// Whether its client knows that bytes of the stream are stored. They are not removed with another upload.
  var hasAcknowledgedBytes: Bool { get }
  /// Whether this is so, and the client can continue the upload.
  var continuesRecording: Bool { get }
  var owner: UploadOwner { get }
  /// Another request continues the recording, which is no longer removed with this upload.
  func lostRecording()
  /// The upload begins or continues a recording.
  func tookRecording(ownsFile: Bool)
  /// The recording was closed although the upload has bytes in it. Its next bytes belong in another part.
  func recordingWasClosed()
  /// A newer request has continued the recording behind bytes that never arrived. The upload cannot be continued.
  func overtaken()
}

/// What to do with the recording of an upload that is over, unless another upload has acknowledged bytes in it.
package enum RecordingEnd {
  /// Remove it if only this upload uses it, and keep it otherwise. The sender has cancelled the upload, or the bytes do
  /// not match the announced digest.
  case discard
  /// Remove it if only this upload uses it, and close it otherwise.
  case expire
  /// Give it its final name, if any byte of it was received. The reason is for the log; nil if the stream was silent
  /// for longer than this server permits.
  case close(because: String? = nil)
  /// Like ``close(because:)``, because closed recordings of the stream contain more, so that it continues in a next
  /// part.
  case closeShort
  /// Keep it, for a client that continues the stream within the permitted silence.
  case leave
  /// Like ``leave``, but the disk has refused bytes of it, so the stream continues in a next part.
  case distrust(SystemError)

  /// Whether nobody relies on the bytes that the upload has stored.
  package var discardsBytes: Bool {
    switch self {
    case .discard, .expire: true
    case .close, .closeShort, .leave, .distrust: false
    }
  }
}

/// What happened to the recording.
package enum RecordingOutcome {
  /// It is being removed. The result is reported to the caller.
  case removing
  /// It is getting its final name. The registry reports the end of that.
  case closing
  case left
  /// The upload cannot end it, because a newer request has taken over the stream, or has completed it.
  case notHeld
}
