// The position of a value along an axis, and the values of the ticks.
//
// Round steps as in Heckbert, "Nice numbers for graph labels" (Graphics Gems, 1990): 1, 2 or 5 times a power of ten.

internal import Glibc

/// One axis of a plot: a scale and its ticks. Values outside its range are placed at its ends.
struct Axis: Sendable, Equatable {
  enum Scale: Sendable { case linear, logarithmic }

  struct Tick: Sendable, Equatable {
    let value: Double
    let label: String
  }

  let scale: Scale
  let range: ClosedRange<Double>
  let ticks: [Tick]

  /// From 0 at the start to 1 at the end.
  func position(_ value: Double) -> Double {
    let share: Double
    switch scale {
    case .linear: share = (value - range.lowerBound) / (range.upperBound - range.lowerBound)
    // A logarithmic axis has no place for values that are not positive, so they are placed at its start.
    case .logarithmic:
      share = value > 0 ? log(value / range.lowerBound) / log(range.upperBound / range.lowerBound) : 0
    }
    return min(1, max(0, share))
  }

  /// From zero to the first round step at or above `maximum`, with four to eight ticks. Counts have only integer ticks.
  static func linear(to maximum: Double, _ quantity: AxisQuantity) -> Axis {
    let top = maximum.isFinite && maximum > 0 ? maximum : 1
    var step = roundStep(atLeast: top / 6)
    // There are no half errors, and nothing below a nanosecond.
    if quantity == .count || quantity == .duration { step = max(1, step) }
    let count = Int((top / step - 1e-9).rounded(.up))
    let ticks = (0...max(1, count)).map { Tick(value: Double($0) * step, label: quantity.label(Double($0) * step)) }
    return Axis(scale: .linear, range: 0...(Double(max(1, count)) * step), ticks: ticks)
  }

  /// From the last 1, 2 or 5 times a power of ten at or below `minimum` to the first at or above `maximum`. There is a
  /// tick at each power of ten, and at 2 and 5 if there is space.
  static func logarithmic(from minimum: Double, to maximum: Double, _ quantity: AxisQuantity) -> Axis {
    let low = minimum.isFinite && minimum > 0 ? minimum : 1
    let high = maximum.isFinite ? max(low, maximum) : low
    var exponent = Int(log10(low).rounded(.down)) - 1
    var steps: [Double] = []
    while steps.last ?? 0 < high * (1 - 1e-9) {
      for digit in [1.0, 2, 5] { steps.append(digit * pow(10, Double(exponent))) }
      exponent += 1
    }
    let first = steps.lastIndex { $0 <= low * (1 + 1e-9) } ?? 0
    var last = steps.firstIndex { $0 >= high * (1 - 1e-9) } ?? steps.count - 1
    if last == first {
      // A single value needs a range around it.
      if first + 1 == steps.count { steps.append(pow(10, Double(exponent))) }
      last = first + 1
    }
    let range = steps[first]...steps[last]
    // Indices that are multiples of three are the powers of ten.
    let shown = (first...last).filter { last - first <= 7 || $0 % 3 == 0 }
    return Axis(
      scale: .logarithmic, range: range, ticks: shown.map { Tick(value: steps[$0], label: quantity.label(steps[$0])) })
  }

  /// The seconds of a run up to its exact end, with ticks at round clock times.
  static func time(to seconds: Double) -> Axis {
    let end = seconds.isFinite && seconds > 0 ? seconds : 1
    let steps: [Double] = [
      1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
    ]
    let step = steps.first { end / $0 <= 10 } ?? (end / 10 / 86400).rounded(.up) * 86400
    let ticks = stride(from: 0, through: end, by: step).map {
      Tick(value: $0, label: AxisQuantity.seconds.label($0))
    }
    return Axis(scale: .linear, range: 0...end, ticks: ticks)
  }

  /// The ticks whose labels have space. On a logarithmic axis, the powers of ten are removed last.
  func ticks(atMost limit: Int) -> [Tick] {
    guard ticks.count > limit else { return ticks }
    var chosen = ticks
    if scale == .logarithmic {
      let powers = ticks.filter { abs(log10($0.value) - log10($0.value).rounded()) < 1e-9 }
      if powers.count > 1 { chosen = powers }
    }
    let step = (chosen.count + limit - 1) / max(1, limit)
    return stride(from: 0, to: chosen.count, by: max(1, step)).map { chosen[$0] }
  }

  static func roundStep(atLeast value: Double) -> Double {
    let power = pow(10, log10(value).rounded(.down))
    for digit in [1.0, 2, 5] where digit * power >= value * (1 - 1e-9) { return digit * power }
    return 10 * power
  }
}
