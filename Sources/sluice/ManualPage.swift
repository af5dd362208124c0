// Manual pages, generated from the table of options in the mdoc(7) format.

internal import UploadClient

/// A page of section 1, for a subcommand or for the command itself.
enum ManualPage {
  /// `sluice help man`: the names of all pages.
  static var names: [String] { ["sluice"] + SluiceCommand.subcommands.map { "sluice-\($0.syntax.name)" } }

  /// The text of a page, or nil if there is no page of that name.
  static func text(_ name: String) -> String? {
    if name == "sluice" { return overview }
    return SluiceCommand.subcommands.first { "sluice-\($0.syntax.name)" == name }.map { page($0.syntax) }
  }

  private static func page(_ syntax: CommandLineSyntax) -> String {
    var lines = head("sluice-\(syntax.name)", syntax.summary)
    lines += [".Sh SYNOPSIS", ".Nm sluice \(syntax.name)", ".Op Ar options"]
    lines += syntax.operands.map { operand in
      operand.hasSuffix("…") ? ".Ar \(macro(String(operand.dropLast()))) ..." : ".Ar \(macro(operand))"
    }
    lines += [".Sh DESCRIPTION", escaped(syntax.summary), ".Pp"]
    if !syntax.actions.isEmpty { lines += ["The actions are:"] + rows(syntax.actions) + [".Pp"] }
    lines += ["The options are:"]
    lines += list(syntax.options + [CommandLineSyntax.helpOption])
    lines += syntax.notes.flatMap { [".Pp", escaped($0)] }
    for topic in syntax.allTopics {
      lines += [".Ss \(macro(topic.title))"]
      lines += topic.options.isEmpty ? rows(topic.rows) : list(topic.options)
      lines += topic.notes.flatMap { [".Pp", escaped($0)] }
    }
    lines += [".Sh EXIT STATUS", ".Bl -tag -width 4n"]
    lines += ExitCode.rows.flatMap { [".It \($0.label)", escaped($0.text)] }
    lines += [".El", ".Sh EXAMPLES", ".Dl \(macro(syntax.example))", ".Sh SEE ALSO", ".Xr sluice 1"]
    return lines.joined(separator: "\n")
  }

  private static var overview: String {
    let summary = "streams endless data to an HTTP server"
    var lines = head("sluice", summary)
    lines += [
      ".Sh SYNOPSIS", ".Nm sluice", ".Ar subcommand", ".Op Ar options", ".Sh DESCRIPTION",
      "Streams endless data to an HTTP server without losing a byte.", ".Pp", "The subcommands are:",
    ]
    lines += rows(
      SluiceCommand.subcommands.map { subcommand in
        (
          (["sluice", subcommand.syntax.name] + subcommand.syntax.operands).joined(separator: " "),
          subcommand.syntax.summary
        )
      })
    lines += [".Sh EXIT STATUS", ".Bl -tag -width 4n"]
    lines += ExitCode.rows.flatMap { [".It \($0.label)", escaped($0.text)] }
    lines += [".El", ".Sh SEE ALSO"]
    let others = names.dropFirst().sorted()
    lines += others.enumerated().map { ".Xr \($1) 1\($0 == others.count - 1 ? "" : " ,")" }
    return lines.joined(separator: "\n")
  }

  // MARK: Parts

  private static func head(_ name: String, _ summary: String) -> [String] {
    let line = summary.hasSuffix(".") ? String(summary.dropLast()) : summary
    return [
      ".\\\" Generated from the table of options: sluice help man \(name)", ".Dd $Mdocdate$",
      ".Dt \(name.uppercased()) 1",
      ".Os",
      ".Sh NAME", ".Nm \(name)", ".Nd \(macro(line.lowercasedFirst))",
    ]
  }

  private static func list(_ options: [Option]) -> [String] {
    [".Bl -tag -width Ds"]
      + options.flatMap { option -> [String] in
        let short = option.short.map { "Fl \($0) , " } ?? ""
        let value = option.value.map { " Ar \(macro($0))" } ?? ""
        return [".It \(short)Fl -\(option.name)\(value)", escaped(option.help.sentence)]
      } + [".El"]
  }

  private static func rows(_ rows: [(label: String, text: String)]) -> [String] {
    [".Bl -tag -width Ds"] + rows.flatMap { [".It \(macro($0.label))", escaped($0.text.sentence)] } + [".El"]
  }

  /// A line of text. It escapes characters that would begin a request or an escape sequence (roff(7)).
  private static func escaped(_ text: String) -> String {
    let text = text.replacing("\\", with: "\\e").replacing("…", with: "...").replacing("–", with: "\\(en")
    return text.hasPrefix(".") || text.hasPrefix("'") ? "\\&" + text : text
  }

  /// The same within the arguments of a macro. Punctuation requires `\&` there, and quotation marks are doubled within
  /// quotation marks.
  private static func macro(_ text: String) -> String {
    let text = text.replacing("\\", with: "\\e").replacing("…", with: "...")
    return text.split(separator: " ").map(String.init).map { word -> String in
      let plain = word.replacing("\"", with: "\\(dq").replacing("'", with: "\\(aq")
      // A word of two or three letters may be the name of a macro.
      let isMacro = word.count <= 3 && word.first?.isUppercase == true
      let isPunctuation = word.allSatisfy { ".,:;()[]?!|-".contains($0) }
      return isMacro || isPunctuation ? "\\&" + plain : plain
    }.joined(separator: " ")
  }
}

extension String {
  /// The text with a capital letter and a full stop. The first character stays as it is if it is not a letter.
  fileprivate var sentence: String {
    let start = first?.isLowercase == true ? prefix(1).uppercased() + String(dropFirst()) : self
    return start.hasSuffix(".") ? start : start + "."
  }
}
