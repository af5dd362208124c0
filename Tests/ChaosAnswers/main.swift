// chaos-answers: runs streams of the client against servers with unexpected answers, and checks them against a model.
// `make chaos-answers` runs it for long.

internal import AnswerChaosTesting
internal import Glibc

let usage = """
  Usage: chaos-answers [--seed N] [--count N] [--only K] [--repeat N] [--jobs N]

    --seed N      what all cases are drawn from (default: drawn)
    --count N     how many (default 100000)
    --only K      runs case K of the seed and no other
    --repeat N    how many times (default 20)
    --jobs N      streams at the same time (default 128)
    --command-every N  runs the real command for one case in N, too (default 500; 0 for none)
    --cell WORDS  only combinations whose names contain all of these words
    --stop        stop after the first cases that fail
  """

/// Writes at once for a watching person, without a buffer of the C library.
func say(_ text: String, to descriptor: Int32 = 1) {
  let bytes = Array((text + "\n").utf8)
  _ = write(descriptor, bytes, bytes.count)
}

func fail(_ message: String, _ code: Int32) -> Never {
  say("chaos-answers: \(message)", to: 2)
  exit(code)
}

var options = AnswerChaos.Options(seed: UInt64.random(in: 0...999_999_999), count: 100_000)
options.commandEvery = 250
var arguments = CommandLine.arguments.dropFirst()
while let name = arguments.popFirst() {
  if name == "--help" {
    say(usage)
    exit(0)
  }
  if name == "--stop" {
    options.stopsAtFirst = true
    continue
  }
  guard let value = arguments.popFirst() else { fail("\(name) requires a value\n\(usage)", 64) }
  if name == "--cell" {
    let words = value.split(separator: " ").map(String.init)
    options.isWanted = { cell in words.allSatisfy { "\(cell)".split(separator: " ").map(String.init).contains($0) } }
    continue
  }
  guard let number = UInt64(value), number <= UInt64(Int.max),
    number > 0 || ["--seed", "--only", "--command-every"].contains(name)
  else {
    fail("\(name) \(value): not a number above 0", 64)
  }
  switch name {
  case "--seed": options.seed = number
  case "--count": options.count = Int(number)
  case "--only": options.only = Int(number)
  case "--repeat": options.copies = Int(number)
  case "--command-every": options.commandEvery = number > 0 ? Int(number) : nil
  case "--jobs": options.jobs = Int(number)
  default: fail("unknown option \(name)\n\(usage)", 64)
  }
}
do {
  let report = try AnswerChaos(options) { say($0) }.run()
  say(report.description)
  exit(report.isClean ? 0 : 1)
} catch {
  fail("\(error)", 1)
}
