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

  @Test("values follow their option, or an equals sign, or a short option at once")
  func values() throws {
    let values = try parse(
      "--interval", "5s", "http://h/?a=b", "--buffer=1MiB", "-HA: b=c", "-H", "D: e", "--header=F: g=h", "-4",
      "--method=PUT=")
    #expect(values.operands == ["http://h/?a=b"])
    #expect(values["interval"] == "5s" && values["buffer"] == "1MiB" && values["method"] == "PUT=")
    #expect(values.all("header") == ["A: b=c", "D: e", "F: g=h"])
    #expect(values.has("ipv4") && !values.has("ipv6"))
  }

  @Test("behind -- there are only operands, and - is one")
  func operands() throws {
    #expect(try parse("--", "--interval").operands == ["--interval"])
    #expect(try parse("-").operands == ["-"])
  }

  @Test(
    "an unknown option names the nearest",
    arguments: [
      ("--intervall", "--interval"), ("--buffr", "--buffer"), ("--bearer-token", "--bearer-token-file"),
      ("-interval", "--interval"),
      ("--ca_file=x", "--ca-file"), ("--ipv5", "--ipv4"),
    ])
  func nearest(_ written: String, _ expected: String) {
    #expect(message("http://h/", written)?.contains("did you mean \(expected)?") == true)
  }

  @Test("where nothing is near, nothing is guessed, and the sentence ends")
  func notNear() {
    #expect(message("http://h/", "--zzzzzzzzzzzz") == "there is no option --zzzzzzzzzzzz. See: sluice heartbeat --help")
  }

  @Test("twice, without its value, with a value it does not take, one too many, one missing: each is said")
  func wrong() {
    #expect(message("u", "--interval", "1s", "--interval=2s") == "--interval is given twice; once is enough")
    #expect(message("u", "-4", "--ipv4") == "--ipv4 is given twice; once is enough")
    #expect(message("u", "--interval") == "--interval needs a value: --interval T")
    #expect(message("u", "--ipv4=yes") == "--ipv4 takes no value")
    #expect(message("u", "v")?.hasPrefix("\"v\" is one argument too many; usage: sluice heartbeat URL") == true)
    #expect(message()?.hasPrefix("URL is missing; usage: sluice heartbeat URL") == true)
  }

  @Test("edit distance is Levenshtein's")
  func distance() {
    #expect(
      editDistance("", "") == 0 && editDistance("", "abc") == 3 && editDistance("kitten", "sitting") == 3
        && editDistance("flaw", "lawn") == 2)
  }

  @Test(
    "each help fits a screen of 24 lines and 100 columns with its prompt, and names an example that its own table takes"
  )
  func help() throws {
    for subcommand in SluiceCommand.subcommands {
      let lines = subcommand.syntax.help.split(separator: "\n", omittingEmptySubsequences: false)
      #expect(lines.count <= 23, "\(subcommand.syntax.name): \(lines.count) lines")
      #expect(
        lines.allSatisfy { $0.count <= 100 }, "\(subcommand.syntax.name): \(lines.max { $0.count < $1.count } ?? "")")
      let example = try #require(lines.last { $0.contains("sluice ") })
      let words = example[try #require(example.firstRange(of: "sluice ")).upperBound...].split(separator: " ").map(
        String.init)
      #expect(words.first == subcommand.syntax.name)
      _ = try subcommand.syntax.parse(words.dropFirst())
    }
    for (topic, shown) in SluiceCommand.topics {
      let table = CommandLineSyntax.table(shown.options)
      #expect(table.count + 2 <= 23 && table.allSatisfy { $0.count <= 100 }, "\(topic): \(table.count) lines")
    }
  }

  @Test("a mistyped subcommand names the nearest")
  func subcommand() throws {
    let error = try #require(throws: CommandError.self) { try SluiceCommand.run(["heartbeet"]) }
    #expect(error.code == .usage && error.message.contains("did you mean heartbeat?"))
  }
}
