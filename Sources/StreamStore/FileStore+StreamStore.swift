// Connects the directory of streams to the server, as one of several stores.

internal import DiskFiles
package import EventLoops
package import StreamServing

extension FileStore: StreamStore {
  package func open(_ name: StreamName, for purpose: StreamPurpose) throws(SystemError) -> (any StoredStream)? {
    switch purpose {
    case .request(let credential, let offset, let creating, let isUpload):
      return try open(name, for: credential, at: offset, creating: creating, isUpload: isUpload)
    case .closing: return try openUnfinished(name)
    }
  }

  package func note(_ note: RecordingNote, on name: StreamName) throws(SystemError) {
    switch note {
    case .distrusted: try noteDistrusted(name)
    case .shared: try noteOtherWriters(.anyone, of: name)
    case .discarded(let owner): try noteOtherWriters(.discarded(owner), of: name)
    case .unfinished(let owner): noteUnfinished(name, owner: owner)
    case .stored(let owner): attribute(name, to: owner)
    }
  }

  package func discard(
    _ remains: StreamRemains, of name: StreamName, on loop: EventLoop, _ ended: @escaping (SystemError?) -> Void
  ) -> Bool {
    // Touched on the loop's thread only; the worker merely carries it back there.
    nonisolated(unsafe) let ended = ended
    switch remains {
    case .ownRecording(let owner) where !otherWriters(of: name).areOnly(owner): return false
    case .record where !isDiscarded(name):
      forgetClosed(name)
      return false
    case .growingRecording, .ownRecording, .record:
      remove(name) { error in loop.execute { ended(error) } }
      return true
    }
  }
}
