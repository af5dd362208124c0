// Writes that are done when all bytes are written: a call may take fewer than it is given.

package import Glibc

/// Calls `body`, a write of at least one byte, until no signal interrupts it. Returns how many bytes it took.
///
/// - Throws: ``SystemError``. A call that takes nothing without an error counts as a full disk: a loop around it would
///   never end.
package func writing(_ operation: @autoclosure () -> String, _ body: () -> Int) throws(SystemError) -> Int {
  let count = try retryingInterrupts(operation(), body)
  guard count > 0 else { throw SystemError(operation: operation(), code: ENOSPC) }
  return count
}

/// Writes all of `bytes`, with as many calls as that takes; write(2), or pwrite(2) with an offset.
package func writeAll(
  _ bytes: [UInt8], to descriptor: Int32, at offset: off_t? = nil, _ operation: @autoclosure () -> String
) throws(SystemError) {
  var rest = bytes[...]
  while !rest.isEmpty {
    let count = try writing(operation()) {
      rest.withUnsafeBytes { rest in
        offset.map { pwrite(descriptor, rest.baseAddress, rest.count, $0 + off_t(bytes.count - rest.count)) }
          ?? write(descriptor, rest.baseAddress, rest.count)
      }
    }
    rest = rest.dropFirst(count)
  }
}
