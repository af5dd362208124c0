// What the client does when the server stores only a small part of each append.
//
// Each such append is progress, so no limit on fruitless requests applies. A server that stores one byte of each would
// receive thousands of requests per second, most of them with the same bytes. So the client pauses after each further
// one, until the server stores more of an append. Progress still counts: the client never gives up because of this.

extension UploadClientStateMachine {
  /// Several in a row may have a cause that does not last, and cause no pause.
  static let immediateShortAppends = 5
  /// An append that stores this many bytes is not short, regardless of its size. A server that stores that much of each
  /// request is not flooded with requests.
  static let worthwhileAdvance: UInt64 = 64 << 10

  /// Whether the server has stored only a small part of each of the last appends.
  package var storesLittle: Bool { patience.shortAppends >= Self.immediateShortAppends }

  /// The upload resource is at `offset` after the last append was answered.
  mutating func judgeAppend(at offset: UInt64) {
    guard let append = resource.answeredAppend else { return }
    resource.answeredAppend = nil
    // The limits on detours apply to an append without progress.
    guard offset > append.lowerBound else { return }
    let count = offset - append.lowerBound
    let isShort = count < Self.worthwhileAdvance && count < (append.upperBound - append.lowerBound) / 2
    patience.shortAppends = isShort ? min(patience.shortAppends + 1, Self.immediateShortAppends) : 0
  }

  /// An interim response has acknowledged bytes of the append under way, which may continue for long.
  mutating func noteInterimAdvance() {
    guard patience.shortAppends > 0, case .appending(let append) = state else { return }
    if acknowledged - min(acknowledged, append.start) >= Self.worthwhileAdvance { patience.shortAppends = 0 }
  }

  /// Asks the target of a redirect for the offset, after a pause if the server stores little of each append and has
  /// redirected one. A redirect of the HEAD after such a pause causes no further one.
  mutating func followInTime() -> Action {
    guard storesLittle, case .appending = state else { return retrieveOffset() }
    let diversion = resource.diversion
    let action = wait(.offsetRetrieval)
    // Unlike after an outage, the client does not return to the first URL, which may redirect each append.
    resource.diversion = diversion
    return action
  }

  /// Continues in a new upload resource, after a pause if the server stores little of each append.
  mutating func beginPartInTime(_ supply: Supply) -> Action {
    let action = beginPart(supply)
    guard storesLittle, case .send = action else { return action }
    return wait(.creation)
  }
}
