// Back to an earlier state: for whoever brings the bytes of streams again, from something that still has them.

package import EventLoops
package import StreamServing

/// How far a recording that grows had come.
package struct GrowthExtent: Equatable, Sendable {
  /// Counted from 1.
  package var part: Int
  /// The stream offset behind its last byte.
  package var length: UInt64

  package init(part: Int, length: UInt64) { (self.part, self.length) = (part, length) }
}

extension FileStore {
  /// How far the stream's recording has come that grows; nil if there is none.
  package func growth(of name: StreamName) throws(SystemError) -> GrowthExtent? {
    guard case .stored(_, let length, _) = try measure(name) else { return nil }
    return GrowthExtent(part: try parts.lines(of: name.base).last?.number ?? 1, length: length)
  }

  /// Takes back what a growing recording has more than it had, and all of it if it was not there. A part that the stream
  /// has begun since loses its bytes, and stays: the log of the stream speaks of it.
  ///
  /// - Parameter extent: how far it had come; nil if it was not there.
  /// - Returns: how many bytes it has less than it had.
  @discardableResult
  package func rollBack(_ name: StreamName, to extent: GrowthExtent?) throws(SystemError) -> UInt64 {
    let log = try parts.lines(of: name.base)
    var name = name
    name.part = log.last?.number ?? 1
    guard let growing = try openGrowing(name, log) else { return 0 }
    if let extent, extent.part == name.part {
      guard growing.length > extent.length else { return extent.length - growing.length }
      try growing.truncate(to: max(growing.start, extent.length))
    } else if extent == nil, name.part == 1 {
      remove(name)
    } else if growing.length > growing.start {
      try growing.truncate(to: growing.start)
    }
    return 0
  }
}
