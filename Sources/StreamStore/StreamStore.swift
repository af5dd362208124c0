// The interface between the requests of a stream and the storage of its bytes: files of a directory, or no storage.

package import EventLoops
package import StreamServing

/// Finds streams by their names. This is all that the server requires of a store.
///
/// Only on the loop's thread. Long operations call back there.
package protocol StreamStore {
  /// Whether a credential may continue the stream of that name: it began the stream, nobody has, or no credential is
  /// required.
  func admits(_ credential: [UInt8]?, to name: StreamName) throws(SystemError) -> Bool
  /// How much of the stream's recording is stored, growing or complete.
  func measure(_ name: StreamName) throws(SystemError) -> StreamExtent
  /// Finds the stream of that name, or begins it; nil if it does not exist and must not begin.
  func open(_ name: StreamName, for purpose: StreamPurpose) throws(SystemError) -> (any StoredStream)?
  /// Writes the stored bytes of a stream that no request has open to the disk. `completion` is called on the loop's
  /// thread.
  func synchronize(_ name: StreamName, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void)
  /// Records something about a growing recording of a stream.
  func note(_ note: RecordingNote, on name: StreamName) throws(SystemError)
  /// Removes what is no longer needed.
  ///
  /// - Parameter ended: called on the loop's thread, with the error if the disk refuses the removal. The stream cannot
  ///   be opened until a removal succeeds.
  /// - Returns: false if nothing is removed, and `ended` is not called: there is nothing, or it is not the requested
  ///   stream.
  func discard(
    _ remains: StreamRemains, of name: StreamName, on loop: EventLoop, _ ended: @escaping (SystemError?) -> Void
  ) -> Bool
}

/// The purpose for which a stream is opened.
package enum StreamPurpose {
  /// A request that begins at `offset` in the stream. It finds the recording growing or complete. If that was closed,
  /// the request begins the next one.
  ///
  /// - Parameters:
  ///   - credential: the owner of the stream from now on, unless it already has one.
  ///   - creating: whether a recording may be begun.
  ///   - isUpload: whether its bytes are synced as they arrive, if that is configured.
  case request(credential: [UInt8]?, offset: UInt64, creating: Bool, isUpload: Bool)
  /// To close its growing recording, if there is one.
  case closing
}

/// A fact about a growing recording.
package enum RecordingNote {
  /// For a later server: the disk has refused bytes of it.
  case distrusted
  /// For a later server: several uploads have written to it, or may have.
  case shared
  /// For a later server: an upload of that owner has written to it, and was cancelled or refused.
  case discarded(by: UploadOwner)
  /// For a later server: its final name, as in the stream's name, and its owner.
  case unfinished(owner: UploadOwner?)
  /// Its bytes without a known owner count against the quota of that owner.
  case stored(by: UploadOwner)
}

/// What a stream may leave behind.
package enum StreamRemains {
  /// The growing recording. A complete one stays.
  case growingRecording
  /// The same, unless it was recorded that others than that owner have written to it.
  case ownRecording(of: UploadOwner)
  /// The records of a stream whose recordings were all removed, or the remains of a removal by an earlier server.
  case record
}

/// How much of a stream's recording is stored.
package enum StreamExtent: Equatable {
  case absent
  /// The recording is closed, and the stream continues in a next part.
  case closed
  /// Stored from `start` on, up to the stream offset `length`.
  case stored(start: UInt64, length: UInt64, GapRecord.Summary)
  /// The same, and the recording has its final name.
  case complete(StreamName, start: UInt64, length: UInt64, GapRecord.Summary)

  /// The stream offset up to which bytes are stored; 0 if bytes cannot be added to them, or there are none.
  var length: UInt64 {
    switch self {
    case .stored(_, let length, _), .complete(_, _, let length, _): length
    case .absent, .closed: 0
    }
  }

  /// The summary of its gaps.
  package var gaps: GapRecord.Summary? {
    switch self {
    case .stored(_, _, let gaps), .complete(_, _, _, let gaps): gaps
    case .absent, .closed: nil
    }
  }
}
