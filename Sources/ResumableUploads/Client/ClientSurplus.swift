// What the client makes of a server that has more of another process's stream than is kept here.
//
// A process sends bytes before a disk has them for sure. A power cut, or a copy that the acknowledgement came before,
// leaves a stretch that ends earlier than what the server has. Every byte there is the stream's own, so the upload is
// completed at the server's offset. That a wrong offset completes nothing is the server's to see: it refuses an append
// that begins anywhere else (409, section "Upload Append").

extension UploadClientStateMachine {
  /// The server's offset behind the end of what is kept.
  struct Surplus: Equatable, Sendable {
    /// Stream offset.
    var end: UInt64
    /// How often in a row HEAD has reported it.
    var count = 0
    /// Whether it has become the end of the stream.
    var isUsed = false

    /// An answer can be spoiled on its way. The same one twice is not.
    var isConfirmed: Bool { count > 1 }
  }

  /// The offset behind the end of what is kept that the server has confirmed: nothing before it has to be sent. Nil
  /// while there is none.
  package var confirmedSurplus: UInt64? { surplus.flatMap { $0.isConfirmed ? $0.end : nil } }

  /// Whether the server has reported more than is kept here, and is asked whether that is so.
  package var isAskingForSurplus: Bool { surplus.map { !$0.isUsed } ?? false }

  /// Up to where the server may have the stream. Where another process has sent some of it, this is up to the end of
  /// what is kept: those bytes may still arrive.
  func believable(_ supply: Supply) -> UInt64 { isResumed ? supply.head : min(sent, supply.head) }

  /// What is at hand, with the end of the stream where the server has it.
  func countingSurplus(_ supply: Supply) -> Supply {
    guard let end = confirmedSurplus, end > supply.head else { return supply }
    var supply = supply
    supply.head = end
    return supply
  }

  /// HEAD has reported `claimed`. Returns the question that confirms it where it is behind the end of what another
  /// process has left; nil where the offset is to be used, or is none that can be believed.
  mutating func checkSurplus(_ claimed: UInt64, _ supply: Supply) -> Action? {
    // A file that is longer at the server is another file.
    guard claimed > supply.head, isResumed, configuration.length == nil, detours <= Self.maximumDetours else {
      surplus = nil
      return nil
    }
    var new = surplus?.end == claimed ? surplus ?? Surplus(end: claimed) : Surplus(end: claimed)
    new.count += 1
    guard new.isConfirmed, supply.isFinished else {
      // Behind the pauses before it, which the stream passes once it is confirmed, the end may be another.
      surplus = new.count > 2 ? nil : new
      return surplus == nil ? nil : detour(204)
    }
    if !new.isUsed { notes.append(.serverHasMore(offset: claimed, kept: supply.head)) }
    new.isUsed = true
    surplus = new
    if sent < claimed { sent = claimed }
    return nil
  }
}
