// Reads blocks from the disk.

internal import Glibc

/// Reads blocks of the ring in steps of up to 1 MiB, and classifies each. One thread at a time.
final class BlockReader {
  /// The blocks of the current step.
  let scratch: UnsafeMutableRawBufferPointer
  private let descriptor: SpoolDescriptor
  private let blockCount: UInt64
  private let seed: UInt32
  /// Blocks by their index, to use if the file lacks one with all of their bytes. They are copies in checkpoints of
  /// blocks that were completed later, and whose writes did not reach the disk.
  var substitutes: [UInt64: SpoolTail] = [:]

  init(_ descriptor: SpoolDescriptor, _ header: SpoolHeader) {
    self.descriptor = descriptor
    blockCount = header.blockCount
    seed = header.seed
    scratch = .allocate(byteCount: SpoolFormat.blocksPerStep * SpoolFormat.blockSize, alignment: SpoolFormat.blockSize)
  }

  deinit { scratch.deallocate() }

  /// A visited block. Its bytes exist until its visit ends.
  struct Block {
    var index: UInt64
    /// Nil if the disk failed to read it twice.
    var content: BlockContent?
    var bytes: UnsafeRawBufferPointer

    /// The stream's bytes in the block, and zeros elsewhere.
    var payload: UnsafeRawBufferPointer { UnsafeRawBufferPointer(rebasing: bytes[SpoolFormat.blockHeaderSize...]) }
    var shape: BlockShape? { content?.shape }
  }

  /// Passes each of `blocks` to `body`, in order, until it returns false.
  func visit(
    _ blocks: Range<UInt64>, _ body: (Block) throws(SpoolError) -> Bool
  ) throws(SpoolError) {
    var index = blocks.lowerBound
    while index < blocks.upperBound {
      let untilWrap = blockCount - index % blockCount
      let count = Int(min(blocks.upperBound - index, untilWrap, UInt64(SpoolFormat.blocksPerStep)))
      let unreadable = try fill(count, from: index)
      for number in 0..<count {
        let start = number * SpoolFormat.blockSize
        let memory = UnsafeMutableRawBufferPointer(rebasing: scratch[start..<start + SpoolFormat.blockSize])
        let bytes = UnsafeRawBufferPointer(memory)
        let current = index + UInt64(number)
        var content = unreadable.contains(number) ? nil : BlockContent(bytes, index: current, seed: seed)
        if let substitute = substitutes[current], content?.shape?.contains(substitute.shape) != true {
          memory.copyBytes(from: substitute.encoded(seed: seed))
          content = BlockContent(bytes, index: current, seed: seed)
        }
        guard try body(Block(index: current, content: content, bytes: bytes)) else { return }
      }
      index += UInt64(count)
    }
  }

  /// Reads consecutive blocks in the file. Returns the numbers of the unreadable ones.
  private func fill(_ count: Int, from index: UInt64) throws(SpoolError) -> Set<Int> {
    do throws(SpoolError) {
      try fill(0..<count, at: SpoolFormat.blockOffset(index, blockCount: blockCount))
      return []
    } catch { if error.code != EIO { throw error } }
    // One bad sector must not hide the blocks around it.
    var unreadable: Set<Int> = []
    for number in 0..<count {
      let offset = SpoolFormat.blockOffset(index + UInt64(number), blockCount: blockCount)
      if try !isReadable(number, at: offset), try !isReadable(number, at: offset) { unreadable.insert(number) }
    }
    return unreadable
  }

  private func isReadable(_ number: Int, at offset: UInt64) throws(SpoolError) -> Bool {
    do throws(SpoolError) {
      try fill(number..<number + 1, at: offset)
      return true
    } catch {
      guard error.code == EIO else { throw error }
      return false
    }
  }

  private func fill(_ numbers: Range<Int>, at offset: UInt64) throws(SpoolError) {
    let target = UnsafeMutableRawBufferPointer(
      rebasing: scratch[numbers.lowerBound * SpoolFormat.blockSize..<numbers.upperBound * SpoolFormat.blockSize])
    let read = try descriptor.read(into: target, at: offset)
    // Beyond the end of a truncated file.
    UnsafeMutableRawBufferPointer(rebasing: target[read...]).initializeMemory(as: UInt8.self, repeating: 0)
  }
}

/// Runs of missing blocks, until the next valid block shows whether they ever existed.
struct MissingBlocks {
  struct Run: Equatable {
    var kind: SpoolDamage.Kind
    var blocks: Range<UInt64>
  }

  private(set) var runs: [Run] = []

  mutating func add(_ block: BlockReader.Block) {
    let kind: SpoolDamage.Kind =
      switch block.content {
      case .torn, .valid: .torn
      case .flippedBit: .flippedBit
      case .empty, .earlierLap: .unwritten
      case .laterLap: .overwritten
      case nil: .unreadable
      }
    if let last = runs.last, last.kind == kind, last.blocks.upperBound == block.index {
      runs[runs.count - 1].blocks = last.blocks.lowerBound..<block.index + 1
    } else {
      runs.append(Run(kind: kind, blocks: block.index..<block.index + 1))
    }
  }

  /// Removes all runs.
  ///
  /// - Parameters:
  ///   - shape: the shape of the valid block `index` after them, which states how many blocks before it were never
  ///     written.
  /// - Returns: the runs that it does not explain.
  mutating func take(before index: UInt64, _ shape: BlockShape) -> [Run] {
    let known = UInt64(shape.missingBefore)
    let start = index > known ? index - known : 0
    defer { runs = [] }
    return runs.compactMap { run in
      guard run.kind == .unwritten, run.blocks.upperBound > start else { return run }
      return run.blocks.lowerBound < start ? Run(kind: run.kind, blocks: run.blocks.lowerBound..<start) : nil
    }
  }
}
