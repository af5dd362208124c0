// --split of serve and mic: when the recording of a stream continues in another file.

internal import EventLoops
internal import UploadServer

/// The conditions that end a recording.
struct SplitOption {
  var duration: Duration?
  /// In bytes.
  var size: UInt64?
  /// Since midnight, in whole minutes.
  var timeOfDay: Duration?

  static let option = Option(
    "split", value: "T|SIZE|HH:MM",
    "continue live WAV recordings in a new file after a time such as 1h, at a size such as 1GB, or at a local time of "
      + "day such as 00:00 (repeatable, the first that occurs applies; default: one file)", mayRepeat: true)

  /// The values of the option, or nil if it is not given.
  static func parse(_ values: [String]) throws(CommandError) -> SplitOption? {
    var split = SplitOption()
    for text in values {
      if text.contains(":") {
        let time = try timeOfDay(text)
        guard split.timeOfDay == nil || split.timeOfDay == time else {
          throw .usage(
            "--split \(text.shown): a second time of day. Give only one. You may add a length or a size.")
        }
        split.timeOfDay = time
        continue
      }
      if Units.lacksUnit(text), let unit = ["s", "min", "h"].first(where: { length(text + $0) != nil }) {
        throw .usage("--split \(text.shown): the unit is missing. Write \(text)\(unit), or another unit such as GB.")
      }
      if Double(text) == nil, let size = Units.byteCount(text), sizes.contains(size) {
        split.size = min(split.size ?? .max, UInt64(size))
      } else if Double(text) == nil, let duration = length(text) {
        split.duration = min(split.duration ?? duration, duration)
      } else {
        throw .usage(
          "--split \(text.shown): invalid time or size. Write a time \(Units.range(from: RecordingSplit.leastDuration)), a size \(Units.range(ofBytes: sizes)), or a time of day such as 00:00."
        )
      }
    }
    return values.isEmpty ? nil : split
  }

  private static let sizes = Int(RecordingSplit.leastSize)...Units.largestByteCount

  /// A time that is long enough for a recording.
  private static func length(_ text: String) -> Duration? {
    try? Units.duration(text, of: "split", atLeast: RecordingSplit.leastDuration)
  }

  private static func timeOfDay(_ text: String) throws(CommandError) -> Duration {
    let parts = text.split(separator: ":", omittingEmptySubsequences: false)
    guard parts.count == 2, parts.allSatisfy({ $0.count == 2 && $0.allSatisfy { "0"..."9" ~= $0 } }),
      let hours = Int(parts[0]), let minutes = Int(parts[1]), hours < 24, minutes < 60
    else {
      throw .usage("--split \(text.shown): invalid time of day. Write one from 00:00 to 23:59.")
    }
    return .seconds(hours * 3600 + minutes * 60)
  }
}
