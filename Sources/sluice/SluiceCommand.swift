// The command: finds the subcommand, and turns an error into a message and an exit code.

internal import Digests
internal import EventLoops
internal import Glibc
internal import JSONDocuments
internal import UploadClient

/// A subcommand: its syntax and its implementation.
struct Subcommand: Sendable {
  let syntax: CommandLineSyntax
  let run: @Sendable (CommandLineSyntax.Values) throws(CommandError) -> ExitCode
}

@main
enum SluiceCommand {
  static let subcommands = [
    Subcommand(syntax: Mic.syntax, run: Mic.run),
    Subcommand(syntax: Heartbeat.syntax, run: Heartbeat.run),
    Subcommand(syntax: Pipe.syntax, run: Pipe.run),
    Subcommand(syntax: Put.syntax, run: Put.run),
    Subcommand(syntax: Get.syntax, run: Get.run),
    Subcommand(syntax: TransfersCommand.syntax, run: TransfersCommand.run),
    Subcommand(syntax: AgentCommand.syntax, run: AgentCommand.run),
    Subcommand(syntax: Devices.syntax, run: Devices.run),
    Subcommand(syntax: Serve.syntax, run: Serve.run),
    Subcommand(syntax: Collect.syntax, run: Collect.run),
    Subcommand(syntax: Verify.syntax, run: Verify.run),
    Subcommand(syntax: SpoolCommand.syntax, run: SpoolCommand.run),
    Subcommand(syntax: Load.syntax, run: Load.run),
    Subcommand(syntax: Report.syntax, run: Report.run),
  ]

  /// Help pages for text that does not fit in the help of the subcommands.
  static let topics = (subcommands.flatMap(\.syntax.topics) + [Units.topic]).reduce(into: [HelpTopic]()) {
    topics, topic in
    if !topics.contains(where: { $0.name == topic.name }) { topics.append(topic) }
  }

  static let overview = [
    "usage: sluice SUBCOMMAND [options]", "",
    "Streams endless data to an HTTP server without losing a byte.", "", "Subcommands:",
    rows(subcommands.map { (([$0.syntax.name] + $0.syntax.operands).joined(separator: " "), $0.syntax.summary) }), "",
    "Help:",
    rows(
      [("sluice SUBCOMMAND --help", "options and an example of the subcommand")]
        + topics.map { ("sluice help \($0.name)", $0.title.lowercasedFirst) }
        + [
          ("sluice help exit-codes", "meaning of the exit codes"),
          ("sluice help man PAGE", "a manual page, for man -l -"),
          ("sluice help completions SHELL", "completions for bash, zsh or fish"),
          ("sluice --version", "print the version and the commit"),
        ]),
  ].joined(separator: "\n")

  private static func rows(_ rows: [(label: String, text: String)]) -> String {
    HelpLayout.table(rows).joined(separator: "\n")
  }

  static func run(_ arguments: ArraySlice<String>) throws(CommandError) -> ExitCode {
    var rest = arguments
    guard let name = rest.popFirst() else { throw .usage("the subcommand is missing.\n\n\(overview)") }
    switch name {
    case "--help", "-h":
      Console.shared.put(overview)
      return .done
    case "help":
      guard let topic = rest.first else {
        Console.shared.put(overview)
        return .done
      }
      Console.shared.put(try page(topic, rest.dropFirst().first))
      return .done
    case "--version":
      Console.shared.put("sluice \(sluiceVersion)\(commitName.isEmpty ? "" : " (commit \(commitName))")")
      return .done
    default:
      let subcommand = try find(name)
      let values = try subcommand.syntax.parse(rest)
      if values.has("help") {
        Console.shared.put(subcommand.syntax.help)
        return .done
      }
      return try subcommand.run(values)
    }
  }

  private static func page(_ topic: String, _ detail: String?) throws(CommandError) -> String {
    if topic == "man" {
      guard let detail else { return ManualPage.names.joined(separator: "\n") }
      if let text = ManualPage.text(detail) { return text }
      throw .usage("cannot find a manual page \(detail.shown). See: sluice help man")
    }
    if topic == "completions" {
      if let script = detail.flatMap(Completions.script) { return script }
      throw .usage("sluice help completions requires a shell: \(Completions.shells.joined(separator: ", ")).")
    }
    if let found = topics.first(where: { $0.name == topic }) { return found.page }
    if topic == "exit-codes" { return ExitCode.page }
    return try find(topic).syntax.help
  }

  /// Words of other programs for what a subcommand does.
  private static let synonyms = [
    "upload": "put", "download": "get", "fetch": "get", "record": "mic", "microphone": "mic", "stream": "pipe",
    "stdin": "pipe", "server": "serve", "listen": "serve", "receive": "serve", "bench": "load", "test": "load",
  ]

  static func find(_ name: String) throws(CommandError) -> Subcommand {
    if let found = subcommands.first(where: { $0.syntax.name == name }) { return found }
    let nearest = synonyms[name.lowercased()] ?? Spelling.similar(to: name, of: subcommands.map(\.syntax.name))
    let hint = nearest.map { ". Did you mean \($0)?" } ?? "."
    throw .usage("unknown subcommand or help topic \(name.shown)\(hint) See: sluice --help")
  }

  /// The memory that libcurl and the threads of any subcommand map before the first byte is sent, in bytes.
  private static let leastMemory = 32 << 20

  static func main() {
    StandardDescriptors.fill()
    // With this, a file size limit causes an error of write(2), which each writer reports. Otherwise, it would end the
    // process.
    signal(SIGXFSZ, SIG_IGN)
    // Otherwise, the Swift runtime would report a crash.
    signal(SIGQUIT, SIG_DFL)
    // The process exits while threads of a server or a session still use it.
    CryptoLibrary.keepUntilExit()
    var code: ExitCode
    do throws(CommandError) {
      guard AddressSpace.hasRoom(for: leastMemory) else {
        throw CommandError(
          .inputOutput, "a limit leaves less than \(leastMemory >> 20) MiB of memory. Raise it with: ulimit -v")
      }
      code = try run(CommandLine.arguments.dropFirst())
    } catch {
      Console.shared.say("sluice: \(error.message)")
      code = error.code
    }
    // A user who sent two signals does not wait for a reader.
    Console.shared.flush(patience: .milliseconds(code == .interrupted ? 100 : 500))
    // It was reported when it began.
    if code == .done, Console.shared.outputFailure != nil { code = .inputOutput }
    exit(code.rawValue)
  }
}
