// What the client does when a server has more of another process's stream than is kept here.
//
// A process sends bytes before a disk has certainly stored them. After a power failure, or with a copy made before the
// acknowledgement, the kept part ends earlier than the server's. Every byte on the server belongs to the stream, so the
// client completes the upload at the server's offset. The server prevents completion at a wrong offset: it refuses an
// append that begins anywhere else (409, section "Upload Append").

extension UploadClientStateMachine {
  /// The server's offset behind the end of what is kept.
  struct Surplus: Equatable, Sendable {
    /// Stream offset.
    var end: UInt64
    /// How often in a row HEAD has reported it.
    var count = 0
    /// Whether the stream now ends there.
    var isUsed = false

    /// An answer can be corrupted on its way, but not twice to the same value.
    var isConfirmed: Bool { count > 1 }
  }

  /// The confirmed server offset beyond the end of what is kept. Nothing before it must be sent. Nil while there is
  /// none.
  package var confirmedSurplus: UInt64? { resource.surplus.flatMap { $0.isConfirmed ? $0.end : nil } }

  /// Whether the server has reported more than is kept here, and the client asks for confirmation.
  package var isAskingForSurplus: Bool { resource.surplus.map { !$0.isUsed } ?? false }

  /// The highest stream offset that the server may have. If another process has sent some of the stream, this is the
  /// end of what is kept, because those bytes may still arrive.
  func believable(_ supply: Supply) -> UInt64 { isResumed ? supply.head : min(sent, supply.head) }

  /// The supply, with the end of the stream at the server's offset if that is confirmed.
  func countingSurplus(_ supply: Supply) -> Supply {
    guard let end = confirmedSurplus else { return supply }
    var supply = supply
    supply.head = max(supply.head, end)
    return supply
  }

  /// HEAD has reported `claimed`. If that is beyond the end of what another process has left, returns the request that
  /// confirms it. Returns nil if the offset is to be used, or is implausible.
  mutating func checkSurplus(_ claimed: UInt64, _ supply: Supply) -> Action? {
    // A file that is longer on the server is a different file.
    guard claimed > supply.head, isResumed, configuration.length == nil, patience.detours <= Self.maximumDetours else {
      resource.surplus = nil
      return nil
    }
    var new = resource.surplus?.end == claimed ? resource.surplus ?? Surplus(end: claimed) : Surplus(end: claimed)
    new.count += 1
    guard new.isConfirmed, supply.isFinished else {
      // Behind the earlier pauses, which the stream skips once the offset is confirmed, the end may differ.
      resource.surplus = new.count > 2 ? nil : new
      return resource.surplus == nil ? nil : detour(204)
    }
    if !new.isUsed { notes.append(.serverHasMore(offset: claimed, kept: supply.head)) }
    new.isUsed = true
    resource.surplus = new
    sent = max(sent, claimed)
    return nil
  }
}
