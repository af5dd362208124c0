// The soak run by itself; see `SoakRun`.

internal import Glibc
internal import SoakTesting

let usage = """
  usage: soak [--seed N] [--hours N] [--factor N]
    --seed N     draws the faults (default: another one each time)
    --hours N    simulated hours (default 168)
    --factor N   simulated seconds in a real one (default 1000)
  """

/// Standard output is for the figures.
func log(_ text: String) {
  let line = Array((text + "\n").utf8)
  write(2, line, line.count)
}

func fail(_ text: String, _ code: Int32) -> Never {
  log(text)
  exit(code)
}

var options = SoakRun.Options(seed: .random(in: 0...UInt64(UInt32.max)))
var words = CommandLine.arguments.dropFirst()
while let name = words.popFirst() {
  guard let number = words.popFirst().flatMap({ UInt32($0) }), number > 0 else { fail(usage, 64) }
  switch name {
  case "--seed": options.seed = UInt64(number)
  case "--hours": options.hours = Int(number)
  case "--factor": options.factor = Int(number)
  default: fail(usage, 64)
  }
}
log("seed \(options.seed)")
do {
  for line in try SoakRun(options, tell: { log($0) }).perform().jsonLines { print(line) }
} catch {
  fail("\(error)\nagain with: soak --seed \(options.seed) --hours \(options.hours) --factor \(options.factor)", 1)
}
