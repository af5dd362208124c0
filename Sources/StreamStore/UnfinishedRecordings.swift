// The recordings that the disk could not finish, and when each is tried again. It does no input or output.

internal import DiskFiles
internal import EventLoops
internal import Glibc

/// A recording that is complete except for what the disk has refused.
struct UnfinishedRecording: Hashable, Sendable {
  /// The name of its files without extension. Names are equal if their streams are.
  var fileBase: String
  /// Whether its stream continues in another file and it lacks its final name. Otherwise it lacks its sidecar.
  var isSplit: Bool
}

/// Decides when each recording is tried again, in rounds of maintenance, and whether its error is reported.
///
/// A lack of descriptors or memory ends by itself, so it is tried again in each round. Any other error may last: after
/// some attempts it is reported once, and the pauses grow. So a damaged recording is not read again and again.
struct UnfinishedRecordings: Sendable {
  /// The number of failed attempts after which an error is reported.
  static let patience = 3
  /// The longest pauses, in rounds: about half an hour, or 17 hours if the disk itself has failed.
  static let longestPause = 32
  static let longestPauseOfDamaged = 1024

  /// The rounds that are left until the next attempt.
  private var waiting: [UnfinishedRecording: Int] = [:]
  /// How often in sequence an error has occurred that may last.
  private var failures: [UnfinishedRecording: Int] = [:]

  /// Called after a failed attempt. Returns whether the error is to be reported.
  ///
  /// - Parameter error: why it failed; nil to try again in the next round.
  mutating func postpone(_ recording: UnfinishedRecording, after error: SystemError?) -> Bool {
    guard let error, !error.isShortage else {
      waiting[recording] = 1
      return false
    }
    let count = min(failures[recording, default: 0], 64) + 1
    failures[recording] = count
    let longest = error.code == EIO ? Self.longestPauseOfDamaged : Self.longestPause
    // The shift cannot overflow, because it is limited.
    waiting[recording] = min(1 << min(max(0, count - Self.patience + 1), 16), longest)
    return count == Self.patience
  }

  /// Whether a recording waits for its next attempt.
  func isPostponed(_ recording: UnfinishedRecording) -> Bool { waiting[recording] != nil }

  /// Called in each round. Returns the recordings that are tried now.
  mutating func round() -> [UnfinishedRecording] {
    let due = Array(waiting.filter { $0.value <= 1 }.keys)
    for recording in due { waiting[recording] = nil }
    for recording in Array(waiting.keys) { waiting[recording]? -= 1 }
    return due
  }

  /// Called when nothing is left to be done for a recording.
  mutating func settle(_ recording: UnfinishedRecording) { failures[recording] = nil }
}
