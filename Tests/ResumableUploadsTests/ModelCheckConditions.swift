// The conditions of a run of the model checker.

import PropertyTesting

@testable import ResumableUploads

/// The conditions of a run, drawn from its seed.
struct ModelConditions {
  var configuration = UploadClientStateMachine.Configuration()
  var limits = UploadLimits()
  /// The stream's bytes.
  var length: UInt64
  var awaitsDisk: Bool
  var joinsParts: Bool
  /// Whether the server lets resources expire, and handlers answer early.
  var endsUploads: Bool
  /// Whether a power failure destroys bytes that a server acknowledged without waiting for its disk.
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
    // Smaller appends mean more of them, but dozens test as much as thousands.
    if let size = [configuration.appendSize, limits.maximumAppendSize].compactMap({ $0 }).min() {
      length = min(length, 50 * size)
    }
    if configuration.isOptimistic || random.chance(20) { configuration.length = length }
    // A version without limits cannot announce them, but a 413 is enough.
    guard configuration.version.hasLimits else { return }
    if random.chance(30) {
      limits.minimumAppendSize = UInt64.random(in: 0...min(limits.maximumAppendSize ?? 40, 40), using: &random)
    }
    // An upload of known length that does not fit is not even begun.
    if configuration.length == nil, random.chance(20) {
      limits.maximumSize = UInt64.random(in: 100...3000, using: &random)
    }
  }
}
