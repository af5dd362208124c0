// Searches for what earlier servers have left, and repeats what fails.

internal import EventLoops
internal import StreamServing
internal import StreamStore

/// Decides when each search is performed.
struct SearchPlan {
  enum Search: CaseIterable {
    /// For streams that have records but no files, or that still have to be removed.
    case removed
    /// For recordings that are unfinished.
    case unfinished
  }

  /// The longest pause after failures, in rounds of maintenance: about half an hour.
  static let longestPause = 32

  /// The searches that the next attempt performs, in their order.
  private var due: [Search] = []
  /// Those that have failed in the current attempt.
  private var failed: [Search] = []
  private var isAtWork = false
  /// How many rounds pass after the next failure.
  private var pause = 1
  private var roundsLeft = 0
  /// The last reported errors.
  private var complaints: [Search: String] = [:]

  /// Returns whether an attempt begins now.
  mutating func request(_ searches: [Search]) -> Bool {
    due += searches.filter { !due.contains($0) }
    return begin()
  }

  /// Called in each round of maintenance. Returns whether an attempt begins now.
  mutating func round() -> Bool {
    guard !due.isEmpty, !isAtWork else { return false }
    roundsLeft -= 1
    return roundsLeft <= 0 && begin()
  }

  private mutating func begin() -> Bool {
    defer { isAtWork = true }
    return !isAtWork
  }

  /// The next search of the current attempt; nil at its end.
  mutating func next() -> Search? {
    if !due.isEmpty { return due.removeFirst() }
    end()
    return nil
  }

  /// A search has failed. Returns whether this is to be reported: a repeated error is not.
  mutating func fail(_ search: Search, _ error: String) -> Bool {
    if !failed.contains(search) { failed.append(search) }
    return complaints.updateValue(error, forKey: search) != error
  }

  /// The attempt could not begin. Returns whether this is to be reported.
  mutating func fail(_ error: String) -> Bool {
    let known = complaints
    for search in due { _ = fail(search, error) }
    let isKnown = due.allSatisfy { known[$0] == error }
    end()
    return !isKnown
  }

  private mutating func end() {
    isAtWork = false
    (due, failed) = (failed, [])
    complaints = complaints.filter { due.contains($0.key) }
    roundsLeft = pause
    pause = due.isEmpty ? 1 : min(pause * 2, Self.longestPause)
  }
}

/// Searches a directory for what earlier servers have left, on a separate thread, because there may be any number of
/// files. Any thread.
///
/// A search that fails is repeated from its beginning after growing pauses. It reports again what it has reported
/// before.
final class RecordingSearch: Sendable {
  private let files: FileStore
  private let plan = Lock(SearchPlan())
  private let found: @Sendable (StreamName, Int64) -> Void
  private let gone: @Sendable (String) -> Void
  private let failed: @Sendable (SystemError) -> Void

  /// - Parameters:
  ///   - found: called with an unfinished recording, and how many seconds ago it was written.
  ///   - gone: called with a stream that has records but no files, or that still has to be removed.
  ///   - failed: called if a search has failed, and will be repeated. Not called again for the same error.
  init(
    _ files: FileStore, found: @escaping @Sendable (StreamName, Int64) -> Void,
    gone: @escaping @Sendable (String) -> Void, failed: @escaping @Sendable (SystemError) -> Void
  ) {
    (self.files, self.found, self.gone, self.failed) = (files, found, gone, failed)
  }

  /// Begins now, or after the attempt that is in progress.
  func begin(_ searches: [SearchPlan.Search]) { if plan.withLock({ $0.request(searches) }) { start() } }

  /// Repeats what has failed, unless it is too early. Called in each round of maintenance.
  func maintain() { if plan.withLock({ $0.round() }) { start() } }

  private func start() {
    do throws(SystemError) {
      try NamedThread("sluice-finder") { [self] in perform() }.detach()
    } catch {
      if plan.withLock({ $0.fail("\(error)") }) { failed(error) }
    }
  }

  private func perform() {
    while let search = plan.withLock({ $0.next() }) {
      do throws(SystemError) {
        switch search {
        case .removed: if let failure = try files.findRemoved(gone) { throw failure }
        case .unfinished: try files.findUnfinished(found)
        }
      } catch {
        if plan.withLock({ $0.fail(search, "\(error)") }) { failed(error) }
      }
    }
  }
}
