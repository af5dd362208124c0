// A mutex whose order ThreadSanitizer can see.
//
// `Mutex` is compiled into the system's Synchronization library, where the sanitizer does not look: under it every use
// is reported as a race, and real races drown. So each turn of the lock also passes through an atomic in our own code.

public import Synchronization

/// A value that one thread at a time may touch; the standard library's `Mutex`, made visible to `--sanitize=thread`.
///
/// Not recursive. On x86-64 the difference is two plain moves, on ARM a load-acquire and a store-release.
public struct Lock<Value: ~Copyable>: ~Copyable {
  @usableFromInline let mutex: Mutex<Value>
  /// Never read for its value: the store of one holder and the load of the next are the order that the sanitizer sees.
  @usableFromInline let handedOn = Atomic<Bool>(false)

  /// Puts a value behind a lock.
  @inlinable
  public init(_ value: consuming sending Value) { mutex = Mutex(value) }

  /// Runs `body` with the value while no other thread has it; waits for one that has. Any thread.
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
