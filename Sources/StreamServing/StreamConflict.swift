// Why a stream does not take the bytes of a request, wherever it is stored.

/// What of a request contradicts the bytes that are stored, or would leave too many out.
package enum StreamConflict: Equatable {
  case beforeRecording, beyondEnd, largeHole, differentBytes, surplusBytes, mayStillCome

  package var reason: String {
    switch self {
    case .beforeRecording: "the recording begins behind this offset: the one before it is closed"
    case .beyondEnd: "the stream is complete and ends before this offset"
    case .largeHole: "the hole before this offset would be larger than the server allows"
    case .differentBytes: "the bytes differ from those that are stored at the same offset"
    case .surplusBytes: "the stream is complete and contains no such bytes"
    case .mayStillCome: "the request has no content, and an upload may still bring the bytes before its offset"
    }
  }
}
