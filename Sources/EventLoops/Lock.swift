// A mutex whose order is visible to ThreadSanitizer.
//
// `Mutex` is compiled into the system's Synchronization library, which is not instrumented. The sanitizer would report
// every use as a race, and real races would be lost among these reports. So each turn of the lock also accesses an
// atomic in our own code.

public import Synchronization

/// A value that one thread at a time may access. It is the standard library's `Mutex`, made visible to
/// `--sanitize=thread`.
///
/// It is not recursive. The cost is two plain moves on x86-64, and a load-acquire and a store-release on ARM.
public struct Lock<Value: ~Copyable>: ~Copyable {
  @usableFromInline let mutex: Mutex<Value>
  /// Its value is never used. The store of one holder and the load of the next show the order to the sanitizer.
  @usableFromInline let handedOn = Atomic<Bool>(false)

  /// Creates a lock with a value.
  @inlinable
  public init(_ value: consuming sending Value) { mutex = Mutex(value) }

  /// Calls `body` with the value while no other thread has access. It waits for the current holder. Any thread.
  @inlinable
  public borrowing func withLock<Result: ~Copyable, Failure: Error>(
    _ body: (inout sending Value) throws(Failure) -> sending Result
  ) throws(Failure) -> sending Result {
    try mutex.withLock { value throws(Failure) in
      _ = handedOn.load(ordering: .acquiring)
      defer { handedOn.store(true, ordering: .releasing) }
      return try body(&value)
    }
  }
}

extension Lock: @unchecked Sendable where Value: ~Copyable {}
