// What the streams and uploads of one loop of a server have in common.

package import EventLoops

/// One loop, with the settings and event handling of everything on it. Only on the loop's thread.
package struct ServingContext {
  package let loop: EventLoop
  /// Which streams and uploads belong to the loop.
  package let assignment: LoopAssignment
  package let figures: ServerLoopFigures
  /// How long a live stream may be silent before its recording is closed.
  package let finishAfter: Duration
  /// Whether the credential that began an upload or a stream is still valid.
  package let isValid: ([UInt8]) -> Bool
  package let emit: (ServerEvent) -> Void

  package init(
    loop: EventLoop, assignment: LoopAssignment, figures: ServerLoopFigures, finishAfter: Duration,
    isValid: @escaping ([UInt8]) -> Bool, emit: @escaping (ServerEvent) -> Void
  ) {
    (self.loop, self.assignment, self.figures) = (loop, assignment, figures)
    (self.finishAfter, self.isValid, self.emit) = (finishAfter, isValid, emit)
  }
}
