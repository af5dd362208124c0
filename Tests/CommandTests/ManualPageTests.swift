// Checks manual pages and completions with the programs that read them.

import NetworkTesting
import Testing

@testable import sluice

@Suite("Manual pages")
struct ManualPageTests {
  @Test("mandoc accepts each page, and the page has each option of the help", arguments: ManualPage.names)
  func lint(_ name: String) throws {
    let directory = try TemporaryDirectory()
    let page = try directory.write("\(name).1", try #require(ManualPage.text(name)) + "\n")
    // Style advice that applies only to OpenBSD does not count here.
    let lint = try TestProcess("mandoc", ["-T", "lint", "-W", "warning", page])
    #expect(try lint.wait() == 0, "\(lint.output)")
    let shown = try TestProcess("mandoc", ["-T", "ascii", "-O", "width=78", page])
    #expect(try shown.wait() == 0)
    // Removes the codes by which a terminal shows bold and underlined text.
    let text = shown.output.joined(separator: "\n").replacing(/.\u{8}/, with: "")
    for option in SluiceCommand.subcommands.first(where: { "sluice-\($0.syntax.name)" == name })?.syntax.allOptions
      ?? []
    {
      #expect(text.contains("--\(option.name)"), "\(option.name)")
    }
    for row in ExitCode.rows { #expect(text.contains(row.label)) }
  }

  @Test("the command prints them, and lists their names")
  func command() throws {
    let names = try sluice(["help", "man"])
    #expect(try names.wait() == 0 && names.output == ManualPage.names)
    let page = try sluice(["help", "man", "sluice-mic"])
    #expect(try page.wait() == 0 && page.output.contains(".Dt SLUICE-MIC 1"))
    let unknown = try sluice(["help", "man", "sluice-nonsense"])
    #expect(try unknown.wait() == 64 && unknown.errors.contains { $0.contains("See: sluice help man") })
  }
}

@Suite("Completions")
struct CompletionsTests {
  private func write(_ shell: String, in directory: TemporaryDirectory) throws -> String {
    try directory.write("sluice.\(shell)", try #require(Completions.script(for: shell)) + "\n")
  }

  @Test("each shell accepts its script", arguments: Completions.shells)
  func syntax(_ shell: String) throws {
    let directory = try TemporaryDirectory()
    let script = try write(shell, in: directory)
    let check = try TestProcess(shell, [shell == "fish" ? "--no-execute" : "-n", script])
    #expect(try check.wait() == 0 && check.errors.isEmpty, "\(check.errors)")
  }

  /// The words that bash suggests for a command line whose last word is incomplete.
  private func offers(_ line: [String]) throws -> [String] {
    let directory = try TemporaryDirectory()
    let words = line.map { "'\($0)'" }.joined(separator: " ")
    let script = """
      source '\(try write("bash", in: directory))'
      COMP_WORDS=(\(words)) COMP_CWORD=\(line.count - 1)
      _sluice
      printf '%s\\n' "${COMPREPLY[@]}"
      """
    let bash = try TestProcess("bash", ["-c", script])
    #expect(try bash.wait() == 0 && bash.errors.isEmpty, "\(bash.errors)")
    return bash.output.filter { !$0.isEmpty }
  }

  @Test("bash offers subcommands, then their options, then the values of an option")
  func bash() throws {
    #expect(try offers(["sluice", "he"]) == ["heartbeat", "help"])
    for subcommand in SluiceCommand.subcommands {
      let offered = try offers(["sluice", subcommand.syntax.name, "--"])
      #expect(offered == subcommand.syntax.allOptions.map { "--\($0.name)" })
    }
    #expect(try offers(["sluice", "mic", "--progress", ""]) == ["auto", "bar", "json", "none"])
    #expect(try offers(["sluice", "serve", "--durability", "i"]) == ["interval"])
    #expect(try offers(["sluice", "mic", "-f", "S"]) == ["S16_LE", "S24_3LE", "S32_LE"])
    #expect(try offers(["sluice", "mic", "--rate", ""]).isEmpty)
    #expect(try offers(["sluice", "help", "exit"]) == ["exit-codes"])
  }

  @Test("the choices in an option's help are those that the command accepts")
  func choices() {
    func choices(_ name: String, _ subcommand: String) -> [String]? {
      SluiceCommand.subcommands.first { $0.syntax.name == subcommand }?.syntax.allOptions
        .first { $0.name == name }.map(Completions.choices)
    }
    #expect(choices("durability", "serve") == ["always", "interval", "none"])
    #expect(choices("profile", "load") == ["mic", "heartbeat", "bulk"])
    #expect(choices("container", "mic") == ["wav", "raw"])
    #expect(choices("overflow", "pipe") == ["drop-oldest", "stop", "wait"])
    #expect(choices("resumable", "pipe") == ["auto", "always", "never"])
    for (name, subcommand) in [("listen", "serve"), ("buffer", "mic"), ("max-uploads", "serve"), ("duration", "mic")] {
      #expect(choices(name, subcommand) == [], "\(name)")
    }
  }
}
