// --split of serve and mic: after how much of a stream its recording continues in another file.

internal import EventLoops
internal import UploadServer

enum SplitOption {
  static let option = Option(
    "split", value: "T|SIZE",
    "continue live WAV recordings in a new file after a time such as 1h, or at a size such as 1GB (repeatable: "
      + "whichever comes first; default: one file)", mayRepeat: true)

  /// The values of the option; nil if it is not given.
  static func parse(_ values: [String]) throws(CommandError) -> RecordingSplit? {
    var split = RecordingSplit()
    for text in values {
      guard Double(text) == nil else {
        throw .usage("--split \(text.shown): bytes or seconds? Write \(text)s, or another unit such as h or GB.")
      }
      if let size = Units.byteCount(text).map({ UInt64($0) }) {
        guard size >= RecordingSplit.leastSize else {
          throw .usage("--split \(text.shown): less than \(Units.text(bytes: RecordingSplit.leastSize)).")
        }
        split.size = min(split.size ?? .max, size)
      } else {
        let duration = try Units.duration(text, of: "split", atLeast: RecordingSplit.leastDuration)
        split.duration = min(split.duration ?? duration, duration)
      }
    }
    return values.isEmpty ? nil : split
  }
}
