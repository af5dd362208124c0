// chaos-server: runs seeded sequences of requests, faults and restarts against a real server, and checks them against a
// model. `make chaos-server` runs it for long.

internal import EventLoops
internal import Glibc
internal import ServerChaosTesting
internal import UploadServer

let usage = """
  Usage: chaos-server [--seed N] [--sequences N] [--only K] [--repeat N] [--jobs N]
                      [--storage NAME] [--event NAME] [--go-on]

    --seed N        what all sequences are drawn from (default: drawn)
    --sequences N   how many (default 100000)
    --only K        runs sequence K of the seed and no other
    --repeat N      how many copies of it (default 50)
    --jobs N        servers at the same time (default 4)
    --event NAME    only sequences with that event: \(Operation.events.map(\.rawValue).joined(separator: ", ")), or none
    --storage NAME  only servers with that storage: directory, discarding, log (one server
                    and two on the same log), or all (default)
    --go-on         do not stop at the first sequence that fails
  """

/// Writes at once for a watching person, without a buffer of the C library.
func say(_ text: String, to descriptor: Int32 = 1) {
  let bytes = Array((text + "\n").utf8)
  _ = write(descriptor, bytes, bytes.count)
}

func fail(_ message: String, _ code: Int32) -> Never {
  say("chaos-server: \(message)", to: 2)
  exit(code)
}

/// Ends the process when the server has ended.
func endWaiter(_ server: UploadServer) throws -> NamedThread {
  try NamedThread("chaos-end") {
    server.waitUntilEnded()
    exit(0)
  }
}

if let options = ServerOptions(Array(CommandLine.arguments.dropFirst())) { serve(options) }

// The path of this program itself.
var options = ServerChaos.Options(
  seed: UInt64.random(in: 0...999_999_999), sequences: 100_000, program: "/proc/self/exe")
var (storage, event) = ("all", "all")
var arguments = CommandLine.arguments.dropFirst()
while let name = arguments.popFirst() {
  if name == "--help" {
    say(usage)
    exit(0)
  }
  if name == "--go-on" {
    options.stopsAtFirst = false
    continue
  }
  guard let value = arguments.popFirst() else { fail("\(name) needs a value\n\(usage)", 64) }
  if name == "--event" {
    guard value == "none" || Operation.events.contains(where: { $0.rawValue == value }) else {
      fail("there is no event \(value)\n\(usage)", 64)
    }
    event = value
    continue
  }
  if name == "--storage" {
    guard ["directory", "discarding", "log", "all"].contains(value) else {
      fail("there is no storage \(value)\n\(usage)", 64)
    }
    storage = value
    continue
  }
  guard let number = UInt64(value), number <= UInt64(Int.max), number > 0 || ["--seed", "--only"].contains(name) else {
    fail("\(name) \(value) is not a number above 0", 64)
  }
  switch name {
  case "--seed": options.seed = number
  case "--sequences": options.sequences = Int(number)
  case "--only": options.only = Int(number)
  case "--repeat": options.copies = Int(number)
  case "--jobs": options.jobs = Int(number)
  default: fail("there is no \(name)\n\(usage)", 64)
  }
}
options.isWanted = { [storage, event] cell in
  let kind = cell.setting.storage.isLog ? "log" : cell.setting.storage.rawValue
  let name = cell.operation.isRequest ? "none" : cell.operation.rawValue
  return (storage == "all" || storage == kind) && (event == "all" || event == name)
}
// A single sequence fails by itself if it requires a broker.
if options.only == nil, ["log", "all"].contains(storage), !ChaosLog.hasRecentBroker {
  fail(
    """
    a log requires NATS 2.14 or newer: there is no nats-server in .build/brokers, and SLUICE_NATS_SERVER names none. Run \
    "make chaos-server", which installs it, or omit the log with --storage directory or --storage discarding.
    """, 69)
}
do {
  let report = try ServerChaos(options) { say($0) }.run()
  say(report.description)
  exit(report.isClean ? 0 : 1)
} catch {
  fail("\(error)", 1)
}
