// The memory for the bodies of responses on their way to their receivers.

internal import EventLoops

/// Blocks of memory that are used again.
///
/// A fast download has up to a megabyte of them in use, and then fewer. malloc(3) would return what is free to the
/// kernel each time, and each page of the next block would cost a page fault.
final class ResponseBlocks: Sendable {
  /// The size of a block in bytes, unless libcurl passes more at once.
  static let size = 64 << 10
  /// The number of unused blocks to keep.
  static let limit = 32

  private let unused = Lock<[[UInt8]]>([])

  /// The number of unused blocks.
  var count: Int { unused.withLock { $0.count } }

  /// An empty array with room for `count` bytes.
  func take(_ count: Int) -> [UInt8] {
    // The last one is still in the processor's cache.
    var block = unused.withLock { $0.popLast() } ?? []
    block.removeAll(keepingCapacity: true)
    block.reserveCapacity(count)
    return block
  }

  /// Keeps the memory of `block`, unless it is small. If other code also keeps it, it is not used again.
  func put(_ block: [UInt8]) {
    guard block.capacity >= Self.size else { return }
    unused.withLock { if $0.count < Self.limit { $0.append(block) } }
  }
}
