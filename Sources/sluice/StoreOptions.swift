// --store and its related options: uploads in a log that several servers share and collectors read.

internal import UploadServer

enum StoreOptions {
  /// The options of `serve` and `collect` for access to the brokers.
  static let access = [
    Option("store-token-file", value: "FILE", "token for the brokers (default: none)"),
    Option("store-credentials", value: "FILE", "NATS credentials file, .creds (default: none)"),
    Option("store-ca", value: "FILE", "PEM file of authorities for TLS to the brokers (default: the system's)"),
    Option(
      "store-cert", value: "FILE",
      "authenticate to the brokers with the client certificate in this PEM file (default: none)"),
    Option("store-key", value: "FILE", "private key of the certificate (default: in the certificate's file)"),
  ]

  static let topic = HelpTopic(
    name: "store", title: "Storage of uploads in NATS JetStream",
    options: [
      Option(
        "store", value: "URL[,URL…]",
        "brokers that store the uploads, such as nats://a:4222,nats://b:4222 (default: none, see --directory)"),
      Option("store-stream", value: "NAME", "JetStream stream; created if it is missing (default: sluice)"),
      Option("replicas", value: "N", "number of brokers that store each message, 1 to 5 (default: 1)"),
      Option(
        "store-monitor", value: "URL[,URL…]",
        "monitoring URL of each broker, such as http://a:8222, which reports when the broker syncs (default: none)"),
      Option(
        "store-system-credentials", value: "FILE",
        "NATS credentials file of the system account, to ask each broker when it syncs (default: none)"),
    ] + access,
    notes: [
      "Several servers with the same --store share their uploads.",
      "Any of them can answer any request.",
      "A byte is acknowledged when the brokers have acknowledged it.",
      "With --durability always, a server accepts uploads only if each broker of the stream reports that it syncs before it acknowledges.",
      "The server asks the brokers only at its start and after each reconnect.",
      "docs/scaling.md describes the losses in each failure, and docs/jetstream.md describes the messages.",
      "Ages, counts and quotas apply to the uploads of all servers together, so all servers require the same values.",
      "Limits per client require --token-file.",
      "Options about files and recordings do not apply with --store.",
    ])

  /// Options of `serve` that require a directory.
  private static let ofDirectories: [String] =
    [
      "directory", "discard", "allow-download", "max-downloads", "split", "names", "no-sidecars", "max-finished",
      "max-finished-size",
    ] + KeepOptions.topic.options.map(\.name)

  /// The values of the options, or nil without `--store`.
  static func parse(_ values: CommandLineSyntax.Values) throws(CommandError) -> UploadServer.Brokers? {
    let stream = try stream(values)
    let replicas =
      try values["replicas"].map { text throws(CommandError) in try Units.integer(text, of: "replicas", in: 1...5) }
      ?? 1
    try checkFiles(values)
    let monitors = try monitors(values)
    let systemCredentials = values["store-system-credentials"]
    if let systemCredentials { try InputFile.check(systemCredentials, option: "store-system-credentials") }
    guard let list = values["store"] else {
      if let option =
        (["store-stream", "replicas", "store-monitor", "store-system-credentials"]
        + access.map(\.name)).first(where: { values[$0] != nil })
      {
        throw .usage("--\(option) \((values[option] ?? "").shown) requires --store. Add --store nats://HOST:4222.")
      }
      return nil
    }
    guard let options = BrokerOptions(list: list) else {
      throw .usage("--store \(list.shown): invalid URL. \(urls)")
    }
    if let option = ofDirectories.first(where: { values.has($0) || values[$0] != nil || !values.all($0).isEmpty }) {
      throw .usage("--\(option) does not apply with --store. Leave one of them out.")
    }
    if values["token-file"] == nil,
      let option = ["max-uploads-per-client", "quota-per-client"].first(where: { values[$0] != nil })
    {
      throw .usage(
        "--\(option) with --store requires --token-file: servers that share uploads know their clients only by tokens. "
          + "Add it."
      )
    }
    if values["durability"] == "none" {
      throw .usage("--durability none does not apply with --store. Write interval or always, or leave it out.")
    }
    var brokers = UploadServer.Brokers(try authorized(options, values), stream: stream, replicas: replicas)
    brokers.witnesses = BrokerWitnesses(monitors: monitors, authorityFile: values["store-ca"])
    if let systemCredentials {
      var system = options
      (system.credentialsFile, system.authorityFile) = (systemCredentials, values["store-ca"])
      (system.certificateFile, system.keyFile) = (values["store-cert"], values["store-key"])
      brokers.witnesses.systemAccount = system
    }
    if values["durability"] == "always", brokers.witnesses.isEmpty {
      throw .usage(
        "--durability always with --store requires --store-monitor or --store-system-credentials: only the brokers can report when "
          + "they sync. Add --store-monitor http://HOST:8222 for each broker.")
    }
    return brokers
  }

  private static func monitors(_ values: CommandLineSyntax.Values) throws(CommandError) -> [BrokerMonitor] {
    guard let list = values["store-monitor"] else { return [] }
    var monitors: [BrokerMonitor] = []
    for url in list.split(separator: ",", omittingEmptySubsequences: false) {
      guard let monitor = BrokerMonitor(String(url)) else {
        throw .usage(
          "--store-monitor \(list.shown): invalid URL. "
            + "Write http://HOST:8222 or https://HOST:8222. Separate several with commas.")
      }
      monitors.append(monitor)
    }
    return monitors
  }

  static let urls = "Write nats://HOST:4222 or tls://HOST:4222. Separate several with commas."

  /// The name of the JetStream stream.
  static func stream(_ values: CommandLineSyntax.Values) throws(CommandError) -> String {
    let stream = values["store-stream"] ?? "sluice"
    guard MessageStream.isValidName(stream) else {
      throw .usage("--store-stream \(stream.shown): invalid name. Use letters, digits, hyphens and underscores.")
    }
    return stream
  }

  static func checkFiles(_ values: CommandLineSyntax.Values) throws(CommandError) {
    for option in access { if let path = values[option.name] { try InputFile.check(path, option: option.name) } }
    if values["store-key"] != nil, values["store-cert"] == nil {
      throw .usage("--store-key requires --store-cert. Add the certificate of the key.")
    }
    let keyOption = values["store-key"] == nil ? "store-cert" : "store-key"
    if let path = values[keyOption] { try PrivateKeyFile.check(path, option: keyOption) }
  }

  /// Adds the credentials that the brokers require.
  static func authorized(
    _ options: BrokerOptions, _ values: CommandLineSyntax.Values
  ) throws(CommandError) -> BrokerOptions {
    var options = options
    if let path = values["store-token-file"] {
      let text = String(
        decoding: try InputFile.contents(of: path, option: "store-token-file", limit: 4096), as: UTF8.self)
      let token = String(text.prefix { !$0.isNewline })
      guard !token.isEmpty else {
        throw CommandError(
          .badData, "--store-token-file \(path.shown): its first line is empty. Write the token there.")
      }
      options.token = token
    }
    options.credentialsFile = values["store-credentials"]
    options.authorityFile = values["store-ca"]
    (options.certificateFile, options.keyFile) = (values["store-cert"], values["store-key"])
    return options
  }
}
