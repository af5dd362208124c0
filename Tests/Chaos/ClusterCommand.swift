// chaos --cluster: the options of runs on a cluster.

internal import ClusterChaosTesting
internal import Glibc

enum ClusterCommand {
  static let usage = """
    Usage: chaos --cluster [--faults N] [--streams N] [--seed N] [--kinds KIND,KIND]

      --faults N      faults of servers and brokers (default 1000)
      --streams N     live streams meanwhile (default 200)
      --seed N        of everything that is random (default: drawn)
      --rivals N      instead: two clients append to one upload, N times each,
                      and one of them lies
      --recovery      instead: kills each server once, and measures how long
                      each of 1000 streams (--streams) stands still
      --kinds LIST    only these: \(ClusterFault.Kind.allCases.map(\.rawValue).joined(separator: ","))

    Requires nats-server (SLUICE_NATS_SERVER names another one than the
    system's) and haproxy. As root, it also pulls cables, and with
    nats-server 2.10 or newer it cuts the power of brokers.
    """

  static func run(_ arguments: [String]) -> Never {
    var rest = arguments[...]
    let isIsolated = rest.first == "--isolated"
    // Two clients need no network namespaces.
    let wantsNamespaces = geteuid() == 0 && !arguments.contains("--rivals")
    if isIsolated { rest = rest.dropFirst() } else if wantsNamespaces { enterNamespaces(arguments) }
    var (rivals, measuresRecovery, streams): (Int?, Bool, Int?) = (nil, false, nil)
    var options = ClusterChaosRun.Options(seed: UInt64.random(in: 0...999_999_999), faults: 1000)
    while let name = rest.popFirst() {
      if name == "--help" {
        say(usage)
        exit(0)
      }
      if name == "--recovery" {
        measuresRecovery = true
        continue
      }
      guard let value = rest.popFirst() else { fail("\(name) wants a value\n\(usage)", 64) }
      switch (name, Int(value)) {
      case ("--faults", let number?) where number > 0: options.faults = number
      case ("--streams", let number?) where number > 0: streams = number
      case ("--rivals", let number?) where number > 0: rivals = number
      case ("--seed", let number?) where number >= 0: options.seed = UInt64(number)
      case ("--kinds", _):
        options.kinds = value.split(separator: ",").map { text in
          guard let kind = ClusterFault.Kind(rawValue: String(text)) else { fail("--kinds: there is no \(text)", 64) }
          return kind
        }
      default: fail("\(name) \(value) is not possible\n\(usage)", 64)
      }
    }
    options.cluster.isIsolated = isIsolated
    options.report = { say($0) }
    raiseDescriptorLimit()
    do {
      if let rivals {
        say(try RivalRun(seed: options.seed, rounds: rivals).perform())
        exit(0)
      }
      if measuresRecovery {
        say(try ClusterRecoveryRun(streams: streams ?? 1000, isIsolated: isIsolated).perform())
        exit(0)
      }
    } catch {
      fail("\(error)", 1)
    }
    if let streams { options.streams = streams }
    perform(options)
  }

  private static func perform(_ options: ClusterChaosRun.Options) -> Never {
    do {
      let run = try ClusterChaosRun(options)
      for missing in run.leftOut { say(missing) }
      say(try run.perform().description)
    } catch {
      fail("\(error)\nagain with: chaos --cluster --seed \(options.seed) --faults \(options.faults)", 1)
    }
    say("each stream complete, once; no acknowledged byte was missing from an answer")
    exit(0)
  }

  private static func enterNamespaces(_ arguments: [String]) {
    ClusterNetwork.enterNamespaces(["--cluster", "--isolated"] + arguments)
    let remedy = errno == ENOENT ? ". Run \"make cluster-programs\", which installs it." : ""
    fail("cannot run unshare: \(String(cString: strerror(errno)))\(remedy)", 74)
  }

  /// Each stream has three connections in this process.
  private static func raiseDescriptorLimit() {
    var limit = rlimit()
    getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
    limit.rlim_cur = limit.rlim_max
    setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
  }
}
