// The seam between what a stream's requests do and where its bytes are: files of a directory, or nowhere.

package import EventLoops
package import StreamServing

/// Where streams are found by their names. The whole of what the server asks of a store.
///
/// Only on the loop's thread; what takes long calls back there.
package protocol StreamStore {
  /// Whether a credential may continue the stream of that name: it began it, or nobody has, or no credential was
  /// asked for.
  func admits(_ credential: [UInt8]?, to name: StreamName) throws(SystemError) -> Bool
  /// How much is stored of the stream's recording, growing or complete.
  func measure(_ name: StreamName) throws(SystemError) -> StreamExtent
  /// Finds the stream of that name, or begins it; nil if there is none and none is to begin.
  func open(_ name: StreamName, for purpose: StreamPurpose) throws(SystemError) -> (any StoredStream)?
  /// Has the disk take what is stored of a stream that no request has open; `completion` is called on the loop's
  /// thread.
  func synchronize(_ name: StreamName, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void)
  /// Remembers something about a stream's recording that still grows.
  func note(_ note: RecordingNote, on name: StreamName) throws(SystemError)
  /// Removes what nobody asks for any more.
  ///
  /// - Parameter ended: called on the loop's thread, with the error if the disk refuses the removal. The stream cannot
  ///   be opened until a removal succeeds.
  /// - Returns: false if nothing is removed, and `ended` is not called: there is nothing, or it is not what was asked
  ///   for.
  func discard(
    _ remains: StreamRemains, of name: StreamName, on loop: EventLoop, _ ended: @escaping (SystemError?) -> Void
  ) -> Bool
}

/// What a stream is opened for.
package enum StreamPurpose {
  /// A request that begins at `offset` in the stream. It finds the recording growing or complete. Where that was closed,
  /// it begins the next one.
  ///
  /// - Parameters:
  ///   - credential: whose stream it is from now on, unless it is somebody's already.
  ///   - creating: whether a recording may be begun.
  case request(credential: [UInt8]?, offset: UInt64, creating: Bool)
  /// Its recording is to be closed, if there is one that still grows.
  case closing
}

/// What is remembered about a recording that still grows.
package enum RecordingNote {
  /// For a server that comes after this one: the disk has refused bytes of it.
  case distrusted
  /// For a server that comes after this one: others than one upload have written to it, or may have.
  case shared
  /// For a server that comes after this one: what it is to be called, as the stream's name says, and whose it is.
  case unfinished(owner: UploadOwner?)
  /// What is stored of it, and nobody is known for, counts against the quota of that owner.
  case stored(by: UploadOwner)
}

/// What a stream may leave behind.
package enum StreamRemains {
  /// The recording that still grows. One that is complete stays.
  case growingRecording
  /// The same, unless it was noted that it is shared.
  case ownRecording
  /// What is known of a stream whose recordings were all removed, or what an earlier server has left of one that it was
  /// removing.
  case record
}

/// How much is stored of a stream's recording.
package enum StreamExtent: Equatable {
  case absent
  /// The recording is closed, and the stream continues in a next part.
  case closed
  /// From `start` on, up to the stream offset `length`.
  case stored(start: UInt64, length: UInt64, GapRecord.Summary)
  /// As much, and the recording has its final name.
  case complete(StreamName, start: UInt64, length: UInt64, GapRecord.Summary)

  /// Up to which stream offset bytes are stored; 0 if nobody can add to them, or there are none.
  var length: UInt64 {
    switch self {
    case .stored(_, let length, _), .complete(_, _, let length, _): length
    case .absent, .closed: 0
    }
  }

  /// What the record of its gaps says of them.
  package var gaps: GapRecord.Summary? {
    switch self {
    case .stored(_, _, let gaps), .complete(_, _, _, let gaps): gaps
    case .absent, .closed: nil
    }
  }
}
