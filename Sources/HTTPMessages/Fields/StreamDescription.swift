// Facts about a stream that only its sender has, in a field of its requests.

/// `Stream-Description`: a dictionary (RFC 9651, section 3.2) on a creation, on an append and on a plain request.
///
/// All members are optional, and a receiver passes over those that it does not know. Nothing depends on them but what
/// is written down about the recording.
package struct StreamDescription: Equatable, Sendable {
  package static let fieldName = "Stream-Description"
  /// A longer field is not read.
  private static let maximumLength = 8192
  /// The longest text of a member, in bytes of UTF-8.
  private static let maximumTextLength = 256
  /// More steps of the clock are not kept: the first ones are.
  package static let maximumStepCount = 64

  package struct ClockStep: Equatable, Sendable {
    /// The stream offset of the newest byte when the sender saw the step.
    package var offset: UInt64
    /// How far the clock went forward; negative if it went back.
    package var milliseconds: Int64

    package init(offset: UInt64, milliseconds: Int64) { (self.offset, self.milliseconds) = (offset, milliseconds) }
  }

  /// When the first byte came into being, in milliseconds since 1970 by the sender's wall clock.
  package var started: Int64?
  package var clockSteps: [ClockStep] = []
  /// What is recorded, e.g. an ALSA device.
  package var device: String?
  package var format: String?
  package var rate: Int64?
  package var channels: Int64?
  /// The sender's software and its version.
  package var software: String?
  /// After how many milliseconds of the stream its recording is to continue in another file.
  package var splitDuration: Int64?
  /// How long a file of its recording is to become, in bytes.
  package var splitSize: Int64?
  /// When its recording is to continue in another file, in milliseconds since 1970 by the sender's wall clock.
  package var splitTimes: [Int64] = []
  /// More of these are not read.
  package static let maximumTimeCount = 16

  package init() {}

  /// Reads the value of the field; nil if it is not a dictionary, or too long. A member with a value that it cannot
  /// have counts as missing.
  package init?(parsing value: String) {
    guard value.utf8.count <= Self.maximumLength, let fields = StructuredDictionary(parsing: value) else { return nil }
    func text(_ key: String) -> String? {
      guard case .item(let item)? = fields[key] else { return nil }
      let text: String
      switch item.value {
      case .string(let value), .displayString(let value): text = value
      default: return nil
      }
      // What is shown to people later cannot command their terminals.
      let isPlain = text.unicodeScalars.allSatisfy { $0.value >= 0x20 && !(0x7F..<0xA0).contains($0.value) }
      return isPlain && !text.isEmpty && text.utf8.count <= Self.maximumTextLength ? text : nil
    }
    func number(_ key: String, in range: ClosedRange<Int64>) -> Int64? {
      guard case .item(let item)? = fields[key], case .integer(let number) = item.value, range.contains(number) else {
        return nil
      }
      return number
    }
    // Up to the end of the year 9999, the last one of RFC 3339.
    started = number("started", in: 0...253_402_300_799_999)
    device = text("device")
    format = text("format")
    rate = number("rate", in: 1...100_000_000)
    channels = number("channels", in: 1...10_000)
    software = text("software")
    splitDuration = number("split-after", in: 1...BareItem.largestInteger)
    splitSize = number("split-size", in: 1...BareItem.largestInteger)
    if case .innerList(let items, _)? = fields["split-times"] {
      splitTimes = items.prefix(Self.maximumTimeCount).compactMap { item in
        guard case .integer(let time) = item.value, time >= 0 else { return nil }
        return time
      }
    }
    if case .innerList(let items, _)? = fields["clock-steps"] {
      for item in items.prefix(Self.maximumStepCount) {
        guard case .integer(let offset) = item.value, offset >= 0,
          case .integer(let milliseconds)? = item.parameters.first(where: { $0.key == "by" })?.value
        else { continue }
        clockSteps.append(ClockStep(offset: UInt64(offset), milliseconds: milliseconds))
      }
    }
  }

  /// The value of the field; nil if there is nothing to describe. What the field cannot hold is left out.
  package var value: String? {
    var fields = StructuredDictionary()
    func set(_ key: String, _ text: String?) {
      guard let text, text.utf8.count <= Self.maximumTextLength else { return }
      let isASCII = text.utf8.allSatisfy { (0x20..<0x7F).contains($0) }
      fields.set(key, .item(Item(isASCII ? .string(text) : .displayString(text))))
    }
    func set(_ key: String, _ number: Int64?) {
      guard let number, number.magnitude <= UInt64(BareItem.largestInteger) else { return }
      fields.set(key, .item(Item(.integer(number))))
    }
    set("started", started)
    set("device", device)
    set("format", format)
    set("rate", rate)
    set("channels", channels)
    set("software", software)
    set("split-after", splitDuration)
    set("split-size", splitSize)
    let times = splitTimes.filter { (0...BareItem.largestInteger).contains($0) }.prefix(Self.maximumTimeCount)
    if !times.isEmpty {
      fields.set("split-times", .innerList(times.map { Item(.integer($0)) }, parameters: []))
    }
    let steps = clockSteps.filter {
      $0.offset <= UInt64(BareItem.largestInteger) && $0.milliseconds.magnitude <= UInt64(BareItem.largestInteger)
    }
    if !steps.isEmpty {
      let items = steps.prefix(Self.maximumStepCount).map {
        Item(.integer(Int64($0.offset)), [Parameter(key: "by", value: .integer($0.milliseconds))])
      }
      fields.set("clock-steps", .innerList(items, parameters: []))
    }
    return fields.members.isEmpty ? nil : fields.serialized
  }
}
