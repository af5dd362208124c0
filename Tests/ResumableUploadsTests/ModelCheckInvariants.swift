// The conditions that client and server must meet after each step and at the end.

@testable import ResumableUploads

extension ModelWorld {
  /// The stream offset up to which the server has stored all bytes, as durably as it promises.
  ///
  /// - Parameter lives: whether to leave out upload resources that became inactive before they were complete.
  private func kept(lives: Bool = false) -> UInt64 {
    var reach: UInt64 = 0
    var grows = true
    while grows {
      grows = false
      for resource in server.resources {
        if lives, case .inactive = resource.state.phase, !resource.wasComplete { continue }
        let end = resource.base + UInt64(conditions.awaitsDisk ? resource.synced : resource.bytes.count)
        if resource.base <= reach, end > reach { (reach, grows) = (end, true) }
      }
    }
    return reach
  }

  /// Invariant 2.
  mutating func checkReleased() {
    guard violation == nil, released > 0, !conditions.losesAcknowledged else { return }
    let kept = kept()
    if kept >= released { return }
    violation = "the client discarded everything up to \(released), and the server has kept \(kept) (invariant 2)"
  }

  /// Checks the conditions that must hold when the client has ended.
  func finalViolation(liesWereTold: Bool, mayEndEarly: Bool) -> String? {
    // "The client cannot continue the upload" (section "Upload Creation", example D), if it cannot begin another one.
    if mayEndEarly, outcome == .fail(.completedEarly) { return nil }
    // The client gives up on a server that repeatedly loses acknowledged bytes, and reports this.
    if conditions.losesAcknowledged, case .fail(.noProgress)? = outcome { return nil }
    guard outcome == .completed else { return "the client ended with \(outcome.map { "\($0)" } ?? "nothing")" }
    guard isFinished, released == conditions.length else {
      return "the client calls it complete with \(released) of \(conditions.length) bytes acknowledged"
    }
    let kept = kept(lives: true)
    if conditions.losesAcknowledged || conditions.endsUploads, kept < conditions.length {
      // Versions 3 to 6 answer 404 to an upload that has expired and to one that is complete and forgotten.
      if conditions.endsUploads, server.resources.contains(where: { $0.state.isInactive }),
        conditions.configuration.version.statuses.inactive == 404
      {
        return nil
      }
      // The loss is reported: an event names both parts, and no incomplete upload passes for a whole one.
      return breaks.isEmpty && gaps.isEmpty
        ? "the server has stored \(kept) bytes of \(conditions.length), and nobody reports it" : nil
    }
    guard kept == conditions.length else { return "the server has stored \(kept) bytes of \(conditions.length)" }
    guard let last = parts.last, let resource = server.resources.first(where: { $0.url == last.url }) else {
      // The last resource comes from an optimistic creation that was never announced to the client.
      return server.resources.contains { $0.state.phase == .complete || $0.wasComplete }
        ? nil : "no upload resource is complete"
    }
    if !conditions.endsUploads, !conditions.losesAcknowledged, resource.state.phase != .complete {
      return "\(resource.url) is not complete"
    }
    // False answers and expiry may cause a part that starts over. Otherwise the parts are contiguous: no byte is lost
    // or stored twice.
    guard !conditions.endsUploads, !conditions.losesAcknowledged, !liesWereTold else { return nil }
    if !gaps.isEmpty { return "the client reports a loss where none was: \(gaps)" }
    var end: UInt64 = 0
    for part in parts {
      guard let resource = server.resources.first(where: { $0.url == part.url }) else {
        return "\(part.url) is nowhere"
      }
      guard part.base == resource.base else { return "\(part.url) begins elsewhere for the client" }
      // If parts are joined, the server may already have stored the first bytes.
      guard part.base == end || (conditions.joinsParts && part.base < end) else {
        return "a part begins at \(part.base), and the one before it ends at \(end)"
      }
      end = part.base + UInt64(resource.bytes.count)
    }
    return end == conditions.length ? nil : "the parts end at \(end) of \(conditions.length)"
  }
}
