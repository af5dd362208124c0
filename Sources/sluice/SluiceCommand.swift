// The command: finds the subcommand, and turns what went wrong into a line and an exit code.

internal import Glibc
internal import UploadClient

/// A subcommand: how it is called, and what it does.
struct Subcommand: Sendable {
  let syntax: CommandLineSyntax
  let run: @Sendable (CommandLineSyntax.Values) throws(CommandError) -> ExitCode

  var overviewLine: String {
    let call = ([syntax.name] + syntax.operands).joined(separator: " ")
    return "  " + call + String(repeating: " ", count: max(1, 16 - call.count)) + syntax.summary
  }
}

@main
enum SluiceCommand {
  static let subcommands = [
    Subcommand(syntax: Mic.syntax, run: Mic.run),
    Subcommand(syntax: Heartbeat.syntax, run: Heartbeat.run),
    Subcommand(syntax: Pipe.syntax, run: Pipe.run),
    Subcommand(syntax: Put.syntax, run: Put.run),
    Subcommand(syntax: Devices.syntax, run: Devices.run),
    Subcommand(syntax: Serve.syntax, run: Serve.run),
    Subcommand(syntax: Load.syntax, run: Load.run),
    Subcommand(syntax: Report.syntax, run: Report.run),
  ]

  static let overview = """
    usage: sluice SUBCOMMAND [options]

    Streams something that never ends to an HTTP server and loses none of it.

    \(subcommands.map(\.overviewLine).joined(separator: "\n"))

      sluice SUBCOMMAND --help    the subcommand's options and an example
      sluice help resuming        options of resumable uploads, which all that stream understand
      sluice help connection      options of the connection, likewise
      sluice --version            the version
    """

  /// Options that are too many for the subcommands' own help.
  static let topics: [String: (title: String, options: [Option])] = [
    "resuming": ("Options of resumable uploads", StreamOptions.resuming),
    "connection": ("Options of the connection", StreamOptions.connection),
    "load-options": ("More options of sluice load", Load.more),
    "uploads": ("Limits of resumable uploads, which sluice serve understands", Serve.uploadOptions),
  ]

  static func run(_ arguments: ArraySlice<String>) throws(CommandError) -> ExitCode {
    var rest = arguments
    guard let name = rest.popFirst() else { throw .usage("a subcommand is missing\n\n\(overview)") }
    switch name {
    case "--help", "-h":
      Console.shared.put(overview)
      return .done
    case "help":
      guard let topic = rest.first else {
        Console.shared.put(overview)
        return .done
      }
      guard let table = topics[topic] else { return try help(on: topic) }
      Console.shared.put((["\(table.title):", ""] + CommandLineSyntax.table(table.options)).joined(separator: "\n"))
      return .done
    case "--version":
      Console.shared.put("sluice \(sluiceVersion)")
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

  static func help(on name: String) throws(CommandError) -> ExitCode {
    Console.shared.put(try find(name).syntax.help)
    return .done
  }

  static func find(_ name: String) throws(CommandError) -> Subcommand {
    if let found = subcommands.first(where: { $0.syntax.name == name }) { return found }
    let nearest = subcommands.map(\.syntax.name).min { editDistance($0, name) < editDistance($1, name) } ?? ""
    let hint = editDistance(nearest, name) <= 2 ? "; did you mean \(nearest)?" : "."
    throw .usage("there is no subcommand \"\(name)\"\(hint) See: sluice --help")
  }

  static func main() {
    StandardDescriptors.fill()
    let code: ExitCode
    do throws(CommandError) {
      code = try run(CommandLine.arguments.dropFirst())
    } catch {
      Console.shared.say("sluice: \(error.message)")
      code = error.code
    }
    // Who has asked twice for the end does not wait for a reader.
    Console.shared.flush(patience: code == .interrupted ? .milliseconds(100) : .milliseconds(500))
    exit(code.rawValue)
  }
}
