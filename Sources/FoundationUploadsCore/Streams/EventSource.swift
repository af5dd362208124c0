// What a run loop knows of a stream that is scheduled in it.

internal import CRunLoop
internal import Foundation
internal import Glibc
internal import Synchronization

/// A source of a run loop that calls a closure on the loop's thread.
final class EventSource: RunLoop._Source {
  let loop: RunLoop
  let mode: RunLoop.Mode
  private let work: (EventSource) -> Void
  /// Whether the loop is about to call ``perform()``.
  private let isSignalled = Atomic(false)
  /// The loop's thread, and what wakes the loop, as long as that is retained. Not known before the loop has called the
  /// source, unless it was added on the loop's own thread.
  private let thread = Atomic<UInt>(0)
  private let handle = Atomic<UnsafeMutableRawPointer?>(nil)
  /// How often the loop sleeps before its thread looks for news again (`StreamEvents`). On the loop's thread only.
  var sleepsBeforeLook = 0

  init(_ loop: RunLoop, _ mode: RunLoop.Mode, _ work: @escaping (EventSource) -> Void) {
    (self.loop, self.mode, self.work) = (loop, mode, work)
    super.init(order: 0)
    if loop === RunLoop.current { learnThread() }
  }

  private func learnThread() {
    thread.store(UInt(pthread_self()), ordering: .relaxed)
    handle.store(CFRunLoopGetCurrent(), ordering: .releasing)
  }

  override func perform() {
    isSignalled.store(false, ordering: .sequentiallyConsistent)
    if handle.load(ordering: .relaxed) == nil { learnThread() }
    work(self)
  }

  /// Lets the loop call ``perform()``, even when it sleeps. Any thread.
  func wake() {
    guard !isSignalled.exchange(true, ordering: .sequentiallyConsistent) else { return }
    signal()
    // A source does not wake a loop that sleeps, nor does `RunLoop.perform`.
    if let handle = handle.load(ordering: .acquiring) {
      if thread.load(ordering: .relaxed) != UInt(pthread_self()) { CFRunLoopWakeUp(handle) }
    } else if loop !== RunLoop.current {
      // It costs ten times as much.
      loop.add(Timer(timeInterval: 0, repeats: false) { _ in }, forMode: mode)
    }
  }

  /// The loop is not to call it any more.
  func retire() {
    loop._remove(self, for: mode)
    guard loop !== RunLoop.current else { return }
    // That loop may be calling it at the moment, and does not retain it. It releases it in its next turn.
    nonisolated(unsafe) let source = self
    loop.add(Timer(timeInterval: 0, repeats: false) { _ in withExtendedLifetime(source) {} }, forMode: mode)
  }
}
