// What the end of a request's body means for its stream, of which others may have stored more. Pure.

/// What the end of a body means for its stream. No other type decides this.
package enum BodyEnd: Equatable, Sendable {
  /// The stream ends.
  case endsStream
  /// Others have stored more of the stream in the same recording. All bytes of the body are stored, so it is complete.
  /// The stream stays open, and continues in this recording.
  case insideRecording
  /// Closed recordings of the stream contain more of it. The body is complete, and the stream stays open. It continues
  /// in a next part, because this recording ends before the closed ones.
  case insideStream
  /// Others have stored more of the stream in the same recording. So the recording is not the content whose length was
  /// announced, and the upload is refused.
  case outgrown

  /// The sender of a body.
  package enum Sender: Equatable, Sendable {
    case plain
    /// An upload whose length was never announced.
    case liveUpload
    case sizedUpload
  }

  /// - Parameters:
  ///   - isInsideRecording: whether bytes behind the body are stored in the same recording.
  ///   - isInsideStream: whether closed recordings of the stream contain bytes behind the body.
  package init(of sender: Sender, isInsideRecording: Bool, isInsideStream: Bool) {
    switch sender {
    // Its regular end is the only way in which a client of a plain stream can end the stream.
    case .plain: self = .endsStream
    case .liveUpload where isInsideRecording: self = .insideRecording
    case .liveUpload: self = isInsideStream ? .insideStream : .endsStream
    // A recording of its own is its content, whatever the closed ones contain.
    case .sizedUpload: self = isInsideRecording ? .outgrown : .endsStream
    }
  }

  /// Whether the body is complete although the stream does not end with it.
  package var leavesStreamOpen: Bool { self == .insideRecording || self == .insideStream }
}
