// The schedule of sluice load: when streams are live, or when requests begin.

internal import EventLoops
internal import LoadReports
internal import LoadTesting

extension Load {
  /// --stage, --arrival-rate, --max-under-way.
  static func setSchedule(
    _ values: CommandLineSyntax.Values, _ configuration: inout LoadConfiguration
  ) throws(CommandError) {
    let stages = try stages(values)
    if let text = values["arrival-rate"] {
      configuration.arrivals = try arrivals(text, stages, values)
    } else {
      if let text = values["max-under-way"] {
        throw .usage("--max-under-way \(text.shown) requires --arrival-rate. Add it.")
      }
      if !stages.isEmpty { configuration.stages = stages }
    }
  }

  private static func stages(_ values: CommandLineSyntax.Values) throws(CommandError) -> [LoadStage] {
    var stages: [LoadStage] = []
    for text in values.all("stage") {
      let parts = text.split(separator: ":", omittingEmptySubsequences: false).map(String.init)
      guard parts.count == 2, let streams = Int(parts[1]), (0...10_000_000).contains(streams),
        let duration = try? Units.duration(parts[0], of: "stage", atLeast: .milliseconds(1), atMost: longest)
      else {
        throw .usage(
          "--stage \(text.shown): invalid stage. Write 30s:1000 for 1000 streams after 30 more seconds (1ms to 30d).")
      }
      stages.append(LoadStage(duration: duration.nanoseconds, streams: streams))
    }
    guard !stages.isEmpty else { return [] }
    // With --arrival-rate, stages do not set the number of streams.
    for option in ["streams", "duration", "ramp"] where values.has(option) {
      if option == "streams", values.has("arrival-rate") { continue }
      throw .usage("--stage and --\(option) contradict each other. Choose one.")
    }
    // An arrival rate may fall from its own value.
    guard values.has("arrival-rate") || stages.contains(where: { $0.streams > 0 }) else {
      throw .usage("--stage \(values["stage"]?.shown ?? ""): no stage has a stream. Write 30s:1000 for 1000 streams.")
    }
    guard StagePlan(stages).duration <= longest.nanoseconds else {
      throw .usage(
        "--stage \(values["stage"]?.shown ?? ""): all stages together last more than 30d. Choose shorter ones.")
    }
    return stages
  }

  private static func arrivals(
    _ text: String, _ stages: [LoadStage], _ values: CommandLineSyntax.Values
  ) throws(CommandError) -> LoadConfiguration.Arrivals {
    guard values.has("request-per-message") else {
      throw .usage("--arrival-rate \(text.shown) requires --request-per-message. Add it.")
    }
    guard !values.has("chunk") else {
      throw .usage("--arrival-rate and --chunk contradict each other. Choose one.")
    }
    let number = text.hasSuffix("/s") ? String(text.dropLast(2)) : ""
    let digits = number.allSatisfy { $0.isASCII && $0.isNumber || $0 == "." }
    guard digits, let rate = Double(number),
      rate >= 0.001 && rate <= ArrivalPlan.highestRate || rate == 0 && !stages.isEmpty
    else {
      throw .usage(
        "--arrival-rate \(text.shown): invalid rate. Write 0.001/s to 10000000/s, or 0/s if --stage raises it.")
    }
    guard rate > 0 || stages.contains(where: { $0.streams > 0 }) else {
      throw .usage(
        "--stage \(values["stage"]?.shown ?? ""): no stage has a request. Write 30s:1000 for 1000 per second.")
    }
    var arrivals = LoadConfiguration.Arrivals(rate: rate)
    arrivals.stages = stages
    if let text = values["max-under-way"] {
      arrivals.maximumUnderWay = try Units.integer(text, of: "max-under-way", in: 1...1_000_000)
    }
    return arrivals
  }
}
