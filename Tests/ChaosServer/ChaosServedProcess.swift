// The server of a batch, in a process that can be killed and whose disk loses unsynced data.

internal import EventLoops
internal import ForgetfulDisk
internal import Glibc
internal import JetStream
internal import ServerChaosTesting
internal import UploadServer

private func storagePlace(for options: ServerOptions) -> UploadServer.Storage {
  switch options.setting.storage {
  case .directory: return .directory(options.directory)
  case .discarding: return .discarding
  case .log, .twoServers:
    var brokers = UploadServer.Brokers(BrokerOptions(servers: [options.broker]), stream: ChaosLog.stream)
    // The proof that `always` requires.
    if options.setting.durability == "always", let monitor = BrokerMonitor(options.monitor) {
      brokers.witnesses = BrokerWitnesses(monitors: [monitor])
    }
    return .brokers(brokers)
  }
}

/// Runs a server like the command: the first SIGTERM gives requests time to end, and the second does not.
func serve(_ options: ServerOptions) -> Never {
  if !options.journal.isEmpty { forgetful_disk_begin(options.directory, options.journal) }
  if !options.bootID.isEmpty { forgetful_disk_boot_id(options.bootID) }
  forgetful_disk_delay(2000, UInt(truncatingIfNeeded: options.seed))
  var signals = sigset_t()
  sigemptyset(&signals)
  sigaddset(&signals, SIGTERM)
  pthread_sigmask(SIG_BLOCK, &signals, nil)
  signal(SIGPIPE, SIG_IGN)
  do {
    var configuration = UploadServer.Configuration(
      listen: [try ListenAddress("127.0.0.1:0")], storage: storagePlace(for: options)
    ) { say($0.jsonLine) }
    guard let durability = Durability(rawValue: options.setting.durability) else { fail("no such durability", 64) }
    configuration.durability = durability
    configuration.threads = options.setting.threads
    configuration.tokenFile = options.tokenFile
    configuration.uploads.quotaPerClient = options.quota
    configuration.uploads.maximumAge = .seconds(options.maximumAge)
    configuration.finishAfter = .seconds(options.finishAfter)
    configuration.uploads.parkDelay = .microseconds(options.parkMicroseconds)
    configuration.lingerTimeout = .milliseconds(500)
    let server = try UploadServer(configuration: configuration)
    try server.start()
    // A load balancer sends requests to ready servers only. One that has not read the log yet answers 503.
    let deadline = MonotonicInstant.now + .seconds(60)
    while !server.isReady {
      guard MonotonicInstant.now < deadline else { fail("the server is not ready after a minute", 1) }
      poll(nil, 0, 1)
    }
    for address in server.localAddresses { say("listening on \(address)") }
    let waiter = try endWaiter(server)
    for grace in [options.graceMilliseconds, 0] {
      var number: Int32 = 0
      sigwait(&signals, &number)
      server.shutdown(grace: .milliseconds(grace))
    }
    waiter.join()
    exit(0)
  } catch {
    fail("\(error)", 1)
  }
}
