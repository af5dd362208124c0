// chaos: injects many faults between a real client and a real server, and checks that every byte arrives once. `make
// chaos` runs it for long.

internal import ChaosTesting
internal import Glibc
internal import NetworkTesting

let usage = """
  Usage: chaos [--faults N] [--runs N] [--seed N] [--kinds KIND,KIND] [--rate BYTES]

    --faults N      faults in each run (default 1000)
    --runs N        runs, each with a seed of its own (default 1)
    --seed N        the first run's seed; the next ones follow (default: drawn)
    --kinds LIST    only these: \(ChaosFault.Kind.allCases.map(\.rawValue).joined(separator: ","))
    --rate BYTES    of the source, per second (default: by the seed)
    --spool         kills the client as well, which keeps the stream in a spool
    --plain         with --spool: plain uploads instead of resumable ones
    --cluster       kills servers and brokers instead; see --cluster --help
  """

/// Writes at once for a watching person, without a buffer of the C library.
func say(_ text: String, to descriptor: Int32 = 1) {
  let bytes = Array((text + "\n").utf8)
  _ = write(descriptor, bytes, bytes.count)
}

func fail(_ message: String, _ code: Int32) -> Never {
  say("chaos: \(message)", to: 2)
  exit(code)
}

if CommandLine.arguments.dropFirst().first == "--cluster" {
  ClusterCommand.run(Array(CommandLine.arguments.dropFirst(2)))
}

var options = ChaosRun.Options(seed: UInt64.random(in: 0...999_999_999), faults: 1000)
var runs = 1
var chosenKinds = ""
var (isSpooled, isPlain) = (false, false)
var arguments = CommandLine.arguments.dropFirst()
while let name = arguments.popFirst() {
  if name == "--help" {
    say(usage)
    exit(0)
  }
  if name == "--spool" || name == "--plain" {
    if name == "--spool" { isSpooled = true } else { isPlain = true }
    continue
  }
  guard let value = arguments.popFirst() else { fail("\(name) wants a value\n\(usage)", 64) }
  func positive() -> Int {
    guard let number = Int(value), number > 0 else { fail("\(name) \(value) is not a number above 0", 64) }
    return number
  }
  switch name {
  case "--faults": options.faults = positive()
  case "--runs": runs = positive()
  case "--rate": options.bytesPerSecond = positive()
  case "--seed":
    guard let seed = UInt64(value) else { fail("--seed \(value) is not a number", 64) }
    options.seed = seed
  case "--kinds":
    chosenKinds = value
    options.kinds = value.split(separator: ",").map { text in
      guard let kind = ChaosFault.Kind(rawValue: String(text)) else {
        fail("--kinds: there is no \(text)\n\(usage)", 64)
      }
      return kind
    }
  default: fail("there is no \(name)\n\(usage)", 64)
  }
}

for index in 0..<runs {
  do {
    if isSpooled {
      var spooled = SpoolChaosRun.Options(seed: options.seed, faults: options.faults)
      spooled.isResumable = !isPlain
      if let rate = options.bytesPerSecond { spooled.bytesPerSecond = rate }
      say(try SpoolChaosRun(spooled).perform())
      options.seed &+= 1
      continue
    }
    say(try ChaosRun(options).perform().description)
  } catch {
    var again = "chaos --seed \(options.seed) --faults \(options.faults)"
    if isSpooled { again += isPlain ? " --spool --plain" : " --spool" }
    if let rate = options.bytesPerSecond { again += " --rate \(rate)" }
    if !chosenKinds.isEmpty { again += " --kinds \(chosenKinds)" }
    fail("run \(index + 1) of \(runs) failed: \(error)\nagain with: \(again)", 1)
  }
  options.seed &+= 1
}
say("\(runs) run\(runs == 1 ? "" : "s") of \(options.faults) faults: every byte stored, once")
