// What the streams and the uploads of one loop of a server have in common.

package import EventLoops

/// One loop, and what everything on it tells and asks. Only on the loop's thread.
package struct ServingContext {
  package let loop: EventLoop
  /// Which streams and uploads belong to the loop.
  package let assignment: LoopAssignment
  package let figures: LoopFigures
  /// How long a live stream may be silent before its recording is closed.
  package let finishAfter: Duration
  /// Whether a credential that an upload or a stream was begun with is still let in.
  package let isValid: ([UInt8]) -> Bool
  package let emit: (ServerEvent) -> Void

  package init(
    loop: EventLoop, assignment: LoopAssignment, figures: LoopFigures, finishAfter: Duration,
    isValid: @escaping ([UInt8]) -> Bool, emit: @escaping (ServerEvent) -> Void
  ) {
    (self.loop, self.assignment, self.figures) = (loop, assignment, figures)
    (self.finishAfter, self.isValid, self.emit) = (finishAfter, isValid, emit)
  }
}
