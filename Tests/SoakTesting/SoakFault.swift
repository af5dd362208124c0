// The faults of a simulated week, and their durations.

internal import NetworkTesting
internal import PropertyTesting

/// One fault of a stream.
package enum SoakFault: String, CaseIterable, Sendable {
  case serverKilled = "server killed and back"
  case networkCut = "network cut"
  case networkSilent = "network silent"
  case bufferFull = "outage longer than the buffer"
  case refused = "401 for minutes"
  case busy = "503 with Retry-After"
  case unplugged = "device unplugged and back"
  case overrun = "device overrun"
  case stopped = "SIGSTOP"
  case asleep = "machine asleep for hours"

  /// In simulated seconds, with a buffer of five minutes.
  var duration: ClosedRange<Double> {
    switch self {
    case .serverKilled: 2...120
    case .networkCut: 5...240
    case .networkSilent: 40...240
    case .bufferFull: 420...1200
    // A stream gives up after ten minutes of refusals.
    case .refused: 20...300
    case .busy: 20...200
    case .unplugged: 10...900
    case .overrun: 1...60
    case .stopped: 20...240
    // The server closes a recording after an hour of silence.
    case .asleep: 900...4 * 3600
    }
  }

  /// The state of the network during a network fault.
  var relayMode: SwitchedRelay.Mode? {
    switch self {
    case .networkCut, .bufferFull: .resets
    case .networkSilent: .silent
    case .refused: .answers("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    case .busy:
      .answers("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    default: nil
    }
  }
}

/// A deliberate defect that the judge must report.
package enum PlantedDefect: String, CaseIterable, Sendable {
  /// Both programs leak (`Tests/ScaledClockPreload/leaks.c`).
  case memory, descriptor, timer, thread
  /// A range of the stored data becomes silent.
  case hole
  /// The reports of losses disappear.
  case report

  var isLeak: Bool { self != .hole && self != .report }
}

/// Selects faults: each kind once before any is repeated. A server is killed only in every fifth round, because growth
/// shows only in a process that lives long.
struct FaultDeck {
  private var deck: [SoakFault] = []
  private var rounds = 0
  private var isForwards: Bool
  private var random: SplitMix64

  init(seed: UInt64) {
    random = SplitMix64(state: seed)
    isForwards = random.chance(50)
  }

  mutating func draw() -> (fault: SoakFault, seconds: Double) {
    if deck.isEmpty {
      deck = SoakFault.allCases.filter { $0 != .serverKilled }.shuffled(using: &random)
      // It comes first, so that its successor lives long.
      if rounds % 5 == 0 { deck.append(.serverKilled) }
      rounds += 1
    }
    let fault = deck.removeLast()
    return (fault, Double.random(in: fault.duration, using: &random))
  }

  mutating func seconds(_ range: ClosedRange<Double>) -> Double { Double.random(in: range, using: &random) }

  /// How far the wall clock is set, in seconds: minutes or hours, alternately forwards and backwards.
  mutating func clockStep() -> Int {
    isForwards.toggle()
    return Int.random(in: 60...6 * 3600, using: &random) * (isForwards ? 1 : -1)
  }
}
