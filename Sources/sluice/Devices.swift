// sluice devices

internal import AudioCapture
internal import JSONLines

enum Devices {
  static let syntax = CommandLineSyntax(
    name: "devices", summary: "Lists the capture devices and what each supports.", operands: [],
    options: [Option("json", "print one JSON object per line")],
    example: "sluice devices")

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let devices = CaptureDevice.list()
    if values.has("json") {
      for device in devices { Console.shared.put(json(device)) }
    } else {
      for line in page(devices) { Console.shared.put(line) }
    }
    guard devices.contains(where: \.isUsable) else {
      throw CommandError(
        .noDevice,
        devices.isEmpty
          ? "cannot find a capture device. Connect a microphone, or start a sound server (PipeWire, PulseAudio)."
          : "cannot open any of these devices. Each line states the reason.")
    }
    return .done
  }

  /// Devices that can be opened come first.
  static func page(_ devices: [CaptureDevice]) -> [String] {
    let usable = devices.filter(\.isUsable)
    let others = devices.filter { !$0.isUsable }
    var lines = usable.map(text)
    if !others.isEmpty {
      lines += (usable.isEmpty ? [] : [""]) + ["Devices that cannot be opened now:"] + others.map(text)
    }
    return lines
  }

  private static func text(_ device: CaptureDevice) -> String {
    let what: String
    switch device.availability {
    case .supports(let support):
      what =
        "\(range(support.rateRange)) Hz, \(range(support.channels)) channels, \(support.formats.map(\.name).joined(separator: " "))"
    case .busy(let holder): what = "in use\(holder.map { " by \($0)" } ?? "")"
    case .unavailable(let reason): what = reason
    }
    // A device states its own name, and a program that uses it too.
    return [device.name, device.description, what].filter { !$0.isEmpty }.map(\.escaped).joined(separator: "\n    ")
  }

  private static func range(_ range: ClosedRange<Int>) -> String {
    range.lowerBound == range.upperBound ? "\(range.lowerBound)" : "\(range.lowerBound)–\(range.upperBound)"
  }

  private static func json(_ device: CaptureDevice) -> String {
    var line = JSONLine(event: "device")
    line.add("name", device.name)
    line.add("description", device.description)
    switch device.availability {
    case .supports(let support):
      line.add("status", "available")
      line.add("rates", support.rates)
      line.add("rate_minimum", support.rateRange.lowerBound)
      line.add("rate_maximum", support.rateRange.upperBound)
      line.add("channels_minimum", support.channels.lowerBound)
      line.add("channels_maximum", support.channels.upperBound)
      line.add("formats", support.formats.map(\.name))
    case .busy(let holder):
      line.add("status", "busy")
      line.add("reason", holder)
    case .unavailable(let reason):
      line.add("status", "unavailable")
      line.add("reason", reason)
    }
    return line.line
  }
}
