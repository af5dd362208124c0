// Sources whose bytes the stream's loop may read itself.

internal import StreamBuffers

/// A source whose bytes the stream's loop reads itself when it needs them, as long as no read waits.
///
/// The bytes of a pipe or a file are then still in the processor's cache when libcurl copies them, and no other thread
/// has to be woken for them. All calls come from the stream's loop.
protocol OnDemandSource: StreamSource {
  /// Called when bytes may have arrived, or the source has ended. A stream that reads on demand sets it before the
  /// start. Without it, the source writes into its producer by itself.
  var arrived: (() -> Void)? { get set }
  /// Whether the loop reads the bytes, and ``arrived`` announces them. It may change to false, and not back. From then
  /// on the source writes on another thread.
  var isReadOnDemand: Bool { get }
  /// Writes the bytes that can be read now into the producer. Returns false if there are none, or no space for them.
  func fetch() -> Bool
}
