// Runs the soak test on its own; see `SoakRun`.

internal import Glibc
internal import SoakTesting

let usage = """
  usage: soak [--seed N] [--hours N] [--factor N] [--split T] [--compressed N] [--plant DEFECT]
    --seed N     draws the faults (default: another one each time)
    --hours N    simulated hours (default 168)
    --factor N   simulated seconds in a real one (default 1000)
    --split T    the microphone's --split, such as 1h (default: one recording)
    --compressed N  instead of hours: N faults within minutes, as in the tests
    --plant DEFECT  make the run go wrong: \(PlantedDefect.allCases.map(\.rawValue).joined(separator: ", "))
  """

/// To standard error, because standard output has the figures.
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
  if name == "--plant" {
    guard let defect = words.popFirst().flatMap(PlantedDefect.init(rawValue:)) else { fail(usage, 64) }
    options.planted.insert(defect)
    continue
  }
  if name == "--split" {
    guard let split = words.popFirst() else { fail(usage, 64) }
    options.split = split
    continue
  }
  guard let number = words.popFirst().flatMap({ UInt32($0) }), number > 0 else { fail(usage, 64) }
  switch name {
  case "--seed": options.seed = UInt64(number)
  case "--hours": options.hours = Int(number)
  case "--factor": options.factor = Int(number)
  case "--compressed":
    let (planted, split) = (options.planted, options.split)
    options = .compressed(seed: options.seed, cycles: Int(number))
    (options.planted, options.split) = (planted, split)
  default: fail(usage, 64)
  }
}
log("seed \(options.seed)")
do {
  let report = try SoakRun(options, tell: { log($0) }).perform()
  for line in report.jsonLines { print(line) }
  guard report.violations.isEmpty else {
    fail((report.violations + ["again with: soak --seed \(options.seed)"]).joined(separator: "\n"), 1)
  }
} catch {
  let split = options.split.map { " --split \($0)" } ?? ""
  fail(
    "\(error)\nagain with: soak --seed \(options.seed) --hours \(options.hours) --factor \(options.factor)\(split)", 1)
}
