// --keep and its related options of serve, which select the complete recordings to remove.

internal import EventLoops
internal import UploadServer

enum KeepOptions {
  static let topic = HelpTopic(
    name: "keep", title: "Retention of recordings by sluice serve",
    options: [
      Option("keep", value: "T", "remove complete recordings that ended more than T ago, such as 30d (default: never)"),
      Option(
        "keep-size", value: "SIZE",
        "remove the oldest recordings of a token that has more than SIZE (default: no limit)"),
      Option(
        "keep-free", value: "N%|SIZE",
        "remove the oldest recordings while less disk space is free, such as 10% or 50GB (default: off)"),
      Option(
        "keep-at-least", value: "SIZE", "keep the newest SIZE of recordings of each token in any case (default: none)"),
    ],
    notes: [
      "Without these options, sluice serve never removes a complete recording.",
      "It removes only recordings that have a sidecar, and none while the machine's clock is not synchronized.",
      "It checks once per minute and logs each removal.",
      "To free space, it removes recordings of the token with the most stored bytes.",
      "Without --token-file, all recordings count as those of one token.",
    ])

  /// The values of the options, or nil if none is given.
  static func parse(_ values: CommandLineSyntax.Values) throws(CommandError) -> RecordingRetention? {
    var retention = RecordingRetention()
    if let text = values["keep"] {
      retention.longestAge = try age(text)
    }
    if let text = values["keep-size"] { retention.largestSize = try size(text, "keep-size") }
    if let text = values["keep-free"] { retention.freeSpace = try freeSpace(text) }
    if let text = values["keep-at-least"] {
      retention.leastSize = try size(text, "keep-at-least")
      guard retention.longestAge != nil || retention.largestSize != nil || retention.freeSpace != nil else {
        throw .usage("--keep-at-least requires --keep, --keep-size or --keep-free. Add one of them.")
      }
      if let largest = retention.largestSize, largest < retention.leastSize {
        throw .usage("--keep-at-least \(text.shown) is more than --keep-size allows. Choose a smaller size.")
      }
    }
    return retention == RecordingRetention() ? nil : retention
  }

  private static func age(_ text: String) throws(CommandError) -> Duration {
    let shortest = Duration.seconds(60)
    guard Double(text) != nil else { return try Units.duration(text, of: "keep", atLeast: shortest) }
    guard Units.lacksUnit(text), (try? Units.duration(text + "d", of: "keep", atLeast: shortest)) != nil else {
      throw .usage("--keep \(text.shown): invalid time. Write a time \(Units.range(from: shortest)).")
    }
    throw .usage("--keep \(text.shown): the unit is missing. Write \(text)d for days, or another unit such as h.")
  }

  private static func size(_ text: String, _ option: String) throws(CommandError) -> UInt64 {
    guard Double(text) != nil else { return UInt64(try Units.byteCount(text, of: option)) }
    guard Units.lacksUnit(text), Units.byteCount(text + "GB") != nil else {
      throw Units.invalidSize(text, of: option)
    }
    throw .usage("--\(option) \(text.shown): the unit is missing. Write \(text)GB, or another unit such as MB.")
  }

  private static func freeSpace(_ text: String) throws(CommandError) -> RecordingRetention.FreeSpace {
    if text.hasSuffix("%"), let percent = Double(text.dropLast()), percent > 0, percent < 100 {
      return .percent(percent)
    }
    if Double(text) == nil, let count = Units.byteCount(text) { return .bytes(UInt64(count)) }
    if Units.lacksUnit(text) {
      guard let percent = Double(text), percent < 100 else { return .bytes(try size(text, "keep-free")) }
      throw .usage("--keep-free \(text.shown): the unit is missing. Write \(text)%, or a unit such as GB.")
    }
    throw .usage(
      "--keep-free \(text.shown): invalid value. Write a percentage between 0% and 100%, or a size \(Units.range(ofBytes: 1...Units.largestByteCount))."
    )
  }
}
