// Facts about a stream that only its sender knows, in a field of its requests.

/// `Stream-Description`: a dictionary (RFC 9651, section 3.2) on a creation, on an append and on a plain request.
///
/// All members are optional, and a receiver ignores unknown ones. They affect only the description of the recording.
package struct StreamDescription: Equatable, Sendable {
  package static let fieldName = "Stream-Description"
  /// Longer fields are ignored.
  private static let maximumLength = 8192
  /// The longest text of a member, in bytes of UTF-8.
  private static let maximumTextLength = 256
  /// The number of clock steps to keep. Later ones are dropped.
  package static let maximumStepCount = 64

  package struct ClockStep: Equatable, Sendable {
    /// The stream offset of the newest byte when the sender noticed the step.
    package var offset: UInt64
    /// The size of the step; negative if the clock went back.
    package var milliseconds: Int64

    package init(offset: UInt64, milliseconds: Int64) { (self.offset, self.milliseconds) = (offset, milliseconds) }
  }

  /// When the first byte was created, in milliseconds since 1970 by the sender's wall clock.
  package var started: Int64?
  package var clockSteps: [ClockStep] = []
  /// The recorded device, for example an ALSA device.
  package var device: String?
  package var format: String?
  package var rate: Int64?
  package var channels: Int64?
  /// The sender's software and its version.
  package var software: String?
  /// The duration in milliseconds after which the recording continues in another file.
  package var splitDuration: Int64?
  /// The size in bytes after which the recording continues in another file.
  package var splitSize: Int64?
  /// The times at which the recording continues in another file, in milliseconds since 1970 by the sender's wall clock.
  package var splitTimes: [Int64] = []
  /// The number of times to read. Further ones are ignored.
  package static let maximumTimeCount = 16

  package init() {}

  /// Reads the value of the field; nil if it is not a dictionary, or is too long. A member with an invalid value counts
  /// as missing.
  package init?(parsing value: String) {
    guard value.utf8.count <= Self.maximumLength, let fields = StructuredDictionary(parsing: value) else { return nil }
    func text(_ key: String) -> String? {
      guard case .item(let item)? = fields[key] else { return nil }
      let text: String
      switch item.value {
      case .string(let value), .displayString(let value): text = value
      default: return nil
      }
      // The text is later shown to people, so it must not contain control sequences for their terminals.
      let isPlain = text.unicodeScalars.allSatisfy { $0.value >= 0x20 && !(0x7F..<0xA0).contains($0.value) }
      return isPlain && !text.isEmpty && text.utf8.count <= Self.maximumTextLength ? text : nil
    }
    func number(_ key: String, in range: ClosedRange<Int64>) -> Int64? {
      guard case .item(let item)? = fields[key], case .integer(let number) = item.value, range.contains(number) else {
        return nil
      }
      return number
    }
    // The limit is the end of the year 9999, as in RFC 3339.
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

  /// The value of the field; nil if there is nothing to describe. Values that the field cannot represent are left out.
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
