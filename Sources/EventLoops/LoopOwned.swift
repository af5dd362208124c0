// A value that other threads hold, and only the thread of its loop uses. Debug builds check this.

/// A value that only the thread of one loop uses. Other threads can carry it, and send it work.
///
/// Use it instead of declaring a type of a loop `@unchecked Sendable`. Debug builds check each access. Any thread may
/// drop the last reference to the value.
package struct LoopOwned<Value>: @unchecked Sendable {
  // Unchecked, because `value` and `execute` give out the value only on the loop's thread, or while no thread runs the
  // loop.

  /// The loop that owns the value.
  package let loop: EventLoop
  private let owned: Value

  /// Gives a value to a loop. The caller no longer uses it in any other way.
  package init(_ value: Value, on loop: EventLoop) {
    owned = value
    self.loop = loop
  }

  /// The value. Only on the loop's thread, or while no thread runs the loop.
  package var value: Value {
    assert(loop.isOnThreadOrIdle, "a value of a loop is used on another thread")
    return owned
  }

  /// Performs `work` with the value on the loop's thread, in the order of the calls. Any thread. It never waits for the
  /// loop.
  package func execute(_ work: @escaping @Sendable (Value) -> Void) {
    loop.execute { work(value) }
  }
}
