// What an upload and the recording that its bytes are in know of each other.

package import EventLoops

/// An upload resource, as the recording sees it that the upload's bytes are in.
package protocol RecordingHolder: AnyObject {
  /// Whether the recording is removed with the upload: no bytes but uploads' of one owner are in it.
  var ownsFile: Bool { get }
  /// Whether the recording is one of a live stream, which age does not remove.
  var isLive: Bool { get }
  /// Whether its client was told that bytes of the stream are stored, and can continue the upload.
  var continuesRecording: Bool { get }
  var owner: UploadOwner { get }
  /// Another request continues the recording, which is not removed with this upload any more.
  func lostRecording()
  /// The upload begins or continues a recording.
  func tookRecording(ownsFile: Bool)
  /// A newer request has continued the recording behind bytes that never came: the upload cannot be continued.
  func overtaken()
}

/// What becomes of a recording whose upload is over, unless another upload has acknowledged bytes in it.
package enum RecordingEnd {
  /// It is removed, if it is the upload's alone, and stays otherwise: the sender has cancelled the upload, or the bytes
  /// are not what was announced.
  case discard
  /// It is removed, if it is the upload's alone, and closed otherwise.
  case expire
  /// It gets its final name, if anything came for it.
  case close
  /// It stays, for whoever continues the stream within the time that it may be silent.
  case leave
  /// As ``leave``, but the disk has refused bytes of it: whoever continues the stream does so in a next part.
  case distrust(SystemError)

  /// Whether nobody counts on what the upload has stored.
  package var discardsBytes: Bool {
    switch self {
    case .discard, .expire: true
    case .close, .leave, .distrust: false
    }
  }
}

/// What became of it.
package enum RecordingOutcome {
  /// It is being removed. Whoever asked for it is told the end of that.
  case removing
  /// It gets its final name; the registry tells that when it is so.
  case closing
  case left
  /// It was not the upload's to end: a newer request has made the stream its own.
  case notHeld
}
