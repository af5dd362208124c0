// Recordings with bytes that the disk refused.

internal import EventLoops
internal import Glibc
internal import StreamServing

/// The growing recordings of one loop with bytes that the disk refused. Only on the loop's thread.
///
/// The kernel reports such an error only once. Without this, the next completion of the stream would be reported as a
/// success.
final class DistrustedRecordings {
  private let store: any StreamStore
  private let emit: (ServerEvent) -> Void
  private var errors: [StreamName: SystemError] = [:]

  init(_ store: any StreamStore, emit: @escaping (ServerEvent) -> Void) { (self.store, self.emit) = (store, emit) }

  /// The reason why the stream's growing recording cannot be continued. Nil if it can.
  subscript(name: StreamName) -> SystemError? { errors[name] }

  /// Records that the disk refused bytes of the stream's growing recording. It may have lost others.
  func add(_ name: StreamName, _ error: SystemError) {
    errors[name] = error
    do throws(SystemError) {
      try store.note(.distrusted, on: name)
    } catch {
      emit(
        ServerEvent(
          .warning,
          reason: "cannot record refused bytes of \(name.partial): \(error). After a restart, they count as stored."))
    }
  }

  /// Whether an earlier server recorded that the disk refused bytes of a growing recording, and this one did not know
  /// it yet.
  func notice(_ stream: any StoredStream) -> Bool {
    guard stream.gaps.isDistrusted, !stream.isComplete, errors[stream.name] == nil else { return false }
    errors[stream.name] = SystemError(operation: "write \(stream.name.partial) in an earlier server", code: EIO)
    return true
  }

  /// Called when the stream has no such recording any more.
  func remove(_ name: StreamName) { errors[name] = nil }

  /// Called at the end of the server.
  func stop() {
    // The disk may have refused this record before.
    for name in errors.keys { try? store.note(.distrusted, on: name) }
  }
}
