// Divides the streams of a log between several collectors.

package import StreamServing

/// One of several equal parts of all streams. The name of a stream's files determines its part, so all of its uploads
/// are in the same part.
package struct StreamPartition: Sendable, Equatable {
  /// Counted from 1.
  package let number: Int
  package let count: Int

  /// All streams.
  package static let whole = StreamPartition(number: 1, count: 1)

  private init(number: Int, count: Int) { (self.number, self.count) = (number, count) }

  /// Parses a text such as `1/3`, the first of three. Nil for other texts, and for more than 256 parts.
  package init?(_ text: String) {
    let numbers = text.split(separator: "/", omittingEmptySubsequences: false).map { part in
      part.utf8.count <= 3 && part.utf8.allSatisfy { (0x30...0x39).contains($0) } ? Int(part) : nil
    }
    guard numbers.count == 2, let number = numbers[0], let count = numbers[1], (1...256).contains(count),
      (1...count).contains(number)
    else { return nil }
    self.init(number: number, count: count)
  }

  package var text: String { "\(number)/\(count)" }

  package var assignment: LoopAssignment { LoopAssignment(index: number - 1, count: count) }
}
