// The configuration of a server, as arguments of its process.

/// The configuration of a batch's server.
package struct ServerOptions: Sendable {
  package var setting: ServerSetting
  package var directory: String
  package var tokenFile: String
  /// The quota of one token, in bytes.
  package var quota: UInt64
  package var maximumAge: Int
  /// Seconds of silence after which a live recording is closed.
  package var finishAfter: Int
  package var graceMilliseconds: Int
  package var parkMicroseconds: Int
  package var seed: UInt64
  /// The file for syncs and names; empty without power failures.
  package var journal = ""
  package var bootID = ""
  /// Whether the file system of the directory has extended attributes. Only for the model.
  var hasAttributes = true
  /// The URLs of the broker and of its monitoring port; empty without a log.
  package var broker = ""
  package var monitor = ""

  package var arguments: [String] {
    [
      "serve", setting.durability, "\(setting.threads)", setting.storage.rawValue, directory, tokenFile,
      "\(quota)", "\(maximumAge)", "\(finishAfter)", "\(graceMilliseconds)", "\(parkMicroseconds)", "\(seed)",
      journal, bootID, broker, monitor,
    ]
  }

  /// nil if these are not the arguments of a server.
  package init?(_ arguments: [String]) {
    guard arguments.count == 16, arguments[0] == "serve", let threads = Int(arguments[2]),
      let storage = ChaosStorage(rawValue: arguments[3]), let quota = UInt64(arguments[6]),
      let age = Int(arguments[7]), let finish = Int(arguments[8]), let grace = Int(arguments[9]),
      let park = Int(arguments[10]), let seed = UInt64(arguments[11])
    else { return nil }
    setting = ServerSetting(durability: arguments[1], threads: threads, storage: storage)
    (directory, tokenFile) = (arguments[4], arguments[5])
    (self.quota, maximumAge, finishAfter, graceMilliseconds) = (quota, age, finish, grace)
    (parkMicroseconds, self.seed) = (park, seed)
    (journal, bootID, broker, monitor) = (arguments[12], arguments[13], arguments[14], arguments[15])
  }

  init(_ setting: ServerSetting, directory: String, tokenFile: String, seed: UInt64) {
    self.setting = setting
    self.directory = directory
    self.tokenFile = tokenFile
    self.seed = seed
    quota = 1 << 20
    maximumAge = 3600
    finishAfter = 3600
    graceMilliseconds = 200
    parkMicroseconds = 60_000_000
  }
}
