import LoadReports
import Testing

@testable import sluice

@Suite("The command line")
struct CommandLineSyntaxTests {
  private func parse(_ arguments: String...) throws(CommandError) -> CommandLineSyntax.Values {
    try Heartbeat.syntax.parse(arguments[...])
  }

  private func message(_ arguments: String...) -> String? {
    do throws(CommandError) {
      _ = try Heartbeat.syntax.parse(arguments[...])
      return nil
    } catch {
      return error.code == .usage ? error.message : "exit code \(error.code)"
    }
  }

  @Test("values follow their option, an equals sign, or a short option directly")
  func values() throws {
    let values = try parse(
      "--interval", "5s", "http://h/?a=b", "--buffer=1MiB", "-HA: b=c", "-H", "D: e", "--header=F: g=h", "-4",
      "--method=PUT=")
    #expect(values.operands == ["http://h/?a=b"])
    #expect(values["interval"] == "5s" && values["buffer"] == "1MiB" && values["method"] == "PUT=")
    #expect(values.all("header") == ["A: b=c", "D: e", "F: g=h"])
    #expect(values.has("ipv4") && !values.has("ipv6"))
  }

  @Test("all arguments after -- are operands, and so is -")
  func operands() throws {
    #expect(try parse("--", "--interval").operands == ["--interval"])
    #expect(try parse("-").operands == ["-"])
  }

  @Test(
    "the error for an unknown option suggests the nearest",
    arguments: [
      ("--intervall", "--interval"), ("--buffr", "--buffer"), ("--bearer-token", "--bearer-token-file"),
      ("-interval", "--interval"),
      ("--ca_file=x", "--ca-file"), ("--ipv5", "--ipv4"),
    ])
  func nearest(_ written: String, _ expected: String) {
    #expect(message("http://h/", written)?.contains("Did you mean \(expected)?") == true)
  }

  @Test(
    "spool refuses options that have no effect on its data, with the reason, and its help does not name them",
    arguments: [
      ("--metrics=127.0.0.1:9", "only a running stream has metrics"), ("--finish-timeout", "a signal ends it at once"),
      ("--stream-id", "each stretch keeps the name"), ("--digest", "a digest covers bytes"),
    ])
  func spoolRefusals(_ written: String, _ reason: String) throws {
    let error = try #require(throws: CommandError.self) {
      _ = try SpoolCommand.syntax.parse(["drain", "/nowhere", written, "x"])
    }
    let option = String(written.prefix { $0 != "=" })
    #expect(error.code == .usage)
    #expect(error.message.hasPrefix("\(option) does not apply to sluice spool: \(reason)"), "\(error.message)")
    #expect(!SpoolCommand.syntax.allOptions.contains { "--\($0.name)" == option })
    #expect(SpoolCommand.syntax.topics.map(\.name) == ["draining"])
  }

  @Test("without a near match, the error has no suggestion", arguments: ["--zzzzzzzzzzzz", "--retries", "--silent"])
  func notNear(_ written: String) {
    #expect(message("http://h/", written) == "unknown option \(written). See: sluice heartbeat --help")
  }

  @Test("a repeated option, a missing or superfluous value, and a missing or superfluous operand are errors")
  func wrong() {
    #expect(message("u", "--interval", "1s", "--interval=2s") == "--interval is given twice. Give it once.")
    #expect(message("u", "-4", "--ipv4") == "--ipv4 is given twice. Give it once.")
    #expect(message("u", "--interval") == "--interval requires a value. Write --interval T.")
    #expect(message("u", "--ipv4=yes") == "--ipv4 takes no value. Leave the value out.")
    #expect(message("u", "v")?.hasPrefix("\"v\" is one argument too many. Usage: sluice heartbeat URL") == true)
    #expect(message()?.hasPrefix("URL is missing. Usage: sluice heartbeat URL") == true)
  }

  @Test("an empty operand is an error that names it", arguments: SluiceCommand.subcommands.map(\.syntax.name))
  func emptyOperand(_ name: String) throws {
    let syntax = try SluiceCommand.find(name).syntax
    for index in syntax.operands.indices {
      let operands = syntax.operands.indices.map { $0 == index ? "" : syntax.operands[$0] }
      let error = try #require(throws: CommandError.self) { _ = try syntax.parse(operands[...]) }
      #expect(error.code == .usage)
      #expect(error.message.hasPrefix("\(syntax.operands[index]) \"\": the argument is empty. "), "\(error.message)")
    }
  }

  /// All texts that help prints.
  static let pages =
    [("overview", SluiceCommand.overview), ("exit-codes", ExitCode.page)]
    + SluiceCommand.subcommands.map { ($0.syntax.name, $0.syntax.help) }
    + SluiceCommand.topics.map { ($0.name, $0.page) }

  @Test("help fits 80 columns, and names each option of its page", arguments: pages)
  func help(_ name: String, _ page: String) {
    for line in page.split(separator: "\n") { #expect(line.count <= 80, "\(line)") }
    let syntax = SluiceCommand.subcommands.first { $0.syntax.name == name }?.syntax
    for option in syntax?.options ?? SluiceCommand.topics.first(where: { $0.name == name })?.options ?? [] {
      #expect(page.contains("--\(option.name)"))
    }
  }

  /// Every option is optional, so each has a default, even if it is `none`.
  @Test(
    "the help of each option with a value ends with its default",
    arguments: SluiceCommand.subcommands.map(\.syntax.name))
  func defaults(_ name: String) throws {
    for option in try SluiceCommand.find(name).syntax.allOptions where option.value != nil {
      #expect(Self.endsWithDefault(option.help), "sluice \(name) --\(option.name): \(option.help)")
    }
  }

  /// Whether the text ends with `(default: …)` or `(repeatable; default: …)`.
  private static func endsWithDefault(_ help: String) -> Bool {
    help.contains(#/\s\((repeatable[^()]*;\s)?default:\s[^()]+\)$/#)
  }

  @Test(
    "a default that is missing, empty or not at the end is found",
    arguments: [
      ("number of loops (default: 1)", true), ("add a field (repeatable; default: none)", true),
      ("new file (repeatable, the first applies; default: one file)", true), ("number of loops", false),
      ("add a field (repeatable)", false), ("number of loops (default: )", false),
      ("number of loops (default: 1), at most 256", false), ("default: 1", false),
    ])
  func findingDefaults(_ help: String, _ expected: Bool) { #expect(Self.endsWithDefault(help) == expected) }

  @Test("a help page shows only options that every subcommand that refers to it accepts")
  func sharedPages() throws {
    for syntax in SluiceCommand.subcommands.map(\.syntax) {
      for topic in syntax.topics {
        let page = try #require(SluiceCommand.topics.first { $0.name == topic.name })
        #expect(page.options.map(\.name) == topic.options.map(\.name), "sluice \(syntax.name): \(topic.name)")
      }
    }
  }

  @Test("the example of each help is a command line that its own table accepts")
  func examples() throws {
    for subcommand in SluiceCommand.subcommands {
      let example = subcommand.syntax.example
      let words = example[try #require(example.firstRange(of: "sluice ")).upperBound...].split(separator: " ").map(
        String.init)
      #expect(words.first == subcommand.syntax.name)
      _ = try subcommand.syntax.parse(words.dropFirst())
    }
  }

  @Test("a short letter means the same option in every subcommand, and an option has at most one letter")
  func letters() {
    var letters: [String: Set<Character?>] = [:]
    var names: [Character: Set<String>] = [:]
    for option in SluiceCommand.subcommands.flatMap(\.syntax.allOptions) {
      letters[option.name, default: []].insert(option.short)
      if let short = option.short { names[short, default: []].insert(option.name) }
    }
    #expect(names.filter { $0.value.count > 1 } == [:])
    #expect(letters.filter { $0.value.count > 1 } == ["rate": ["r", nil]])  // frames of `mic`, bytes of `load`
  }

  @Test("the help of --resumable says which choice a portal cannot change")
  func resumable() {
    for syntax in [Mic.syntax, Pipe.syntax, Put.syntax, Load.syntax] {
      let help = syntax.allOptions.first { $0.name == "resumable" }?.help
      #expect(help?.contains("always (if the server supports them, so that a portal cannot turn them off)") == true)
    }
  }

  @Test("the help of each rate has its unit, and that of --rate differs between mic and load")
  func rates() throws {
    for option in SluiceCommand.subcommands.flatMap(\.syntax.allOptions)
    where option.name == "rate" || option.name.hasSuffix("-rate") {
      #expect(option.help.contains(/(frames|bytes|requests) per second/), "--\(option.name): \(option.help)")
    }
    let rates = [Mic.syntax, Load.syntax].map { $0.allOptions.first { $0.name == "rate" } }
    #expect(rates.map { $0?.value } == ["N", "SIZE"])
    #expect(rates[0]?.help.contains("frames per second") == true)
    #expect(rates[1]?.help.contains("bytes per second") == true)
  }

  @Test("text wraps between words, at the margin of its column")
  func wrapping() {
    let rows = [("--a", String(repeating: "word ", count: 30)), (String(repeating: "l", count: 40), "text")]
    let lines = HelpLayout.table(rows)
    #expect(lines[0].hasPrefix("  --a  word word") && lines[1].hasPrefix("       word"))
    #expect(lines.joined().filter { $0 == "w" }.count == 30 && lines.allSatisfy { $0.count <= 80 })
    #expect(lines.suffix(2) == ["  " + rows[1].0, "       text"])
    #expect(HelpLayout.wrapped(String(repeating: "x", count: 100)) == [String(repeating: "x", count: 100)])
  }

  @Test(
    "the error for an unknown subcommand suggests the nearest, or the one that does what the word means",
    arguments: [
      ("heartbeet", "heartbeat"), ("upload", "put"), ("Download", "get"), ("record", "mic"), ("server", "serve"),
    ])
  func subcommand(_ written: String, _ expected: String) throws {
    let error = try #require(throws: CommandError.self) { try SluiceCommand.run([written]) }
    #expect(error.code == .usage && error.message.contains("Did you mean \(expected)?"))
  }

  @Test("the help of load lists each metric of --fail-if, and names the page with their meanings")
  func metrics() {
    let words = Load.syntax.help.split(whereSeparator: \.isWhitespace).joined(separator: " ")
    #expect(words.contains("Metrics of --fail-if: ack, slow.ack, "))
    #expect(words.contains(", goodput, status.NNN. sluice help metrics explains them."))
    for (label, _) in LoadMetric.descriptions where !label.contains(",") {
      #expect(words.contains(", \(label),") || words.contains(": \(label),"), "\(label)")
    }
    let page = Report.metrics.page.split(whereSeparator: \.isWhitespace).joined(separator: " ")
    #expect(page.contains("requests of --arrival-rate that could not begin: too many were in progress"))
    #expect(page.contains("a stream made no progress for --give-up"))
    #expect(page.contains("may also be a percentage of the bytes offered (lost > 1%)"))
  }

  @Test(
    "the help of a subcommand refers to the units of times and sizes if an option takes one",
    arguments: SluiceCommand.subcommands.map(\.syntax.name))
  func units(_ name: String) throws {
    let takesThem = !["transfers", "devices", "verify", "report"].contains(name)
    #expect(try SluiceCommand.find(name).syntax.help.contains("  sluice help units") == takesThem)
  }

  @Test("the help of put states when the name of the file is appended, and where the options of digests are")
  func put() {
    let words = Put.syntax.help.split(whereSeparator: \.isWhitespace).joined(separator: " ")
    #expect(words.contains("If the path of URL is empty or ends in /, the name of the file is appended."))
    #expect(words.contains("sluice help resuming options of resumable uploads and digests"))
    #expect(ManualPage.text("sluice-put")?.contains("the name of the file is appended") == true)
  }

  @Test("the page of the exit codes explains a missing URL and an existing output file")
  func exitCodes() {
    let words = ExitCode.page.split(whereSeparator: \.isWhitespace).joined(separator: " ")
    #expect(
      words.contains(
        "74 reading, writing, capturing or opening a connection failed on this machine, or the output file exists"))
    #expect(words.contains("does not support the stream, or the URL does not exist"))
  }

  @Test("each help topic on a page exists")
  func topics() {
    let pages =
      [SluiceCommand.overview] + SluiceCommand.subcommands.map(\.syntax.help) + SluiceCommand.topics.map(\.page)
    let there = SluiceCommand.topics.map(\.name) + ["exit-codes", "man", "completions"]
    for page in pages {
      for match in page.matches(of: #/sluice help ([a-z-]+)/#) {
        #expect(there.contains(String(match.1)), "\(match.0)")
      }
    }
  }
}
