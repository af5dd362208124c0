// The directory of streams as the server sees it: one store among others.

package import EventLoops
package import StreamServing

extension FileStore: StreamStore {
  package func open(_ name: StreamName, for purpose: StreamPurpose) throws(SystemError) -> (any StoredStream)? {
    switch purpose {
    case .request(let credential, let offset, let creating):
      try open(name, for: credential, at: offset, creating: creating)
    case .closing: try openUnfinished(name)
    }
  }

  package func note(_ note: RecordingNote, on name: StreamName) throws(SystemError) {
    switch note {
    case .distrusted: try noteDistrusted(name)
    case .shared: try noteShared(name)
    case .unfinished(let owner): noteUnfinished(name, owner: owner)
    case .stored(let owner): attribute(name, to: owner)
    }
  }

  package func discard(
    _ remains: StreamRemains, of name: StreamName, on loop: EventLoop, _ removed: @escaping () -> Void
  ) -> StreamRemoval {
    // Touched on the loop's thread only; the worker merely carries it back there.
    nonisolated(unsafe) let removed = removed
    switch remains {
    case .ownRecording where isShared(name): return .refused
    case .growingRecording, .ownRecording: return remove(name) { loop.execute { removed() } }
    case .record: return forgetClosed(name) { loop.execute { removed() } }
    }
  }
}
