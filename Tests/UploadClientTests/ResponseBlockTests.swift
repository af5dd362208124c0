import Testing

@testable import UploadClient

@Suite("The memory of responses' bodies")
struct ResponseBlockTests {
  private let blocks = ResponseBlocks()

  private func address(of block: [UInt8]) -> UnsafeRawPointer? { block.withUnsafeBytes { $0.baseAddress } }

  private func block(_ byte: UInt8) -> [UInt8] {
    var block = blocks.take(ResponseBlocks.size)
    block.append(byte)
    return block
  }

  @Test("a block that comes back is used again")
  func again() {
    var first = block(1)
    let place = address(of: first)
    blocks.put(first)
    first = []
    let second = block(2)
    #expect(second == [2])
    #expect(address(of: second) == place)
  }

  @Test("a block that comes back and is kept nevertheless is not changed")
  func kept() {
    let first = block(1)
    blocks.put(first)
    let second = block(2)
    #expect(first == [1])
    #expect(second == [2])
  }

  @Test("no more blocks are kept than a download needs")
  func limit() {
    var all = (0..<2 * ResponseBlocks.limit).map { block(UInt8($0)) }
    for block in all { blocks.put(block) }
    #expect(blocks.count == ResponseBlocks.limit)
    all = []
    blocks.put([UInt8](repeating: 1, count: 10))
    #expect(blocks.count == ResponseBlocks.limit)
  }
}
