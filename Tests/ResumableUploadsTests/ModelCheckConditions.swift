// Under which conditions a run of the model checker takes place.

import PropertyTesting

@testable import ResumableUploads

/// What a run is made of, drawn from its seed.
struct ModelConditions {
  var configuration = UploadClientStateMachine.Configuration()
  var limits = UploadLimits()
  /// The stream's bytes.
  var length: UInt64
  var awaitsDisk: Bool
  var joinsParts: Bool
  /// Whether the server lets resources expire, and handlers answer early.
  var endsUploads: Bool
  /// Whether a power failure takes bytes that were acknowledged, from a server that does not wait for its disk.
  var losesAcknowledged: Bool
  /// Whether contents of known size have a Content-Length.
  var sizesContent: Bool

  init(_ random: inout SplitMix64) {
    length = UInt64(random.size(upTo: 3000)) - 1
    (awaitsDisk, joinsParts) = (random.chance(50), random.chance(50))
    losesAcknowledged = !awaitsDisk && random.chance(20)
    (endsUploads, sizesContent) = (random.chance(15), random.chance(50))
    configuration.version = ([.none] + InteropVersion.drafts).randomElement(using: &random) ?? .newest
    configuration.discovers = random.chance(50)
    configuration.isOptimistic = random.chance(20)
    configuration.streamID = "stream"
    if random.chance(30) { configuration.appendSize = UInt64(random.size(upTo: 400)) }
    if random.chance(30) { limits.maximumAppendSize = UInt64(random.size(upTo: 400)) }
    // The smaller the appends, the more of them: some dozens say as much as thousands.
    if let size = [configuration.appendSize, limits.maximumAppendSize].compactMap({ $0 }).min() {
      length = min(length, 50 * size)
    }
    if configuration.isOptimistic || random.chance(20) { configuration.length = length }
    // Limits that nobody can tell nobody can keep; but a 413 says enough of its own.
    guard configuration.version.hasLimits else { return }
    if random.chance(30) {
      limits.minimumAppendSize = UInt64.random(in: 0...min(limits.maximumAppendSize ?? 40, 40), using: &random)
    }
    // A representation of a known length that does not fit is not begun at all.
    if configuration.length == nil, random.chance(20) {
      limits.maximumSize = UInt64.random(in: 100...3000, using: &random)
    }
  }
}
