// Completions for shells, from the table of options.

/// `sluice help completions SHELL`: a script for the shell to read.
enum Completions {
  static let shells = ["bash", "zsh", "fish"]

  static func script(for shell: String) -> String? {
    switch shell {
    case "bash": bash
    case "zsh": zsh
    case "fish": fish
    default: nil
    }
  }

  /// Whether an option's value is the name of a file or of a directory.
  private static func isPath(_ option: Option) -> Bool {
    ["FILE", "DIR", "PATH"].contains(option.value ?? "")
  }

  /// The words that an option's value can be, where its help lists them behind a colon: `: auto, bar or none`.
  static func choices(_ option: Option) -> [String] {
    guard option.value != nil else { return [] }
    var help = option.help
    if let start = help.firstRange(of: " (default") { help = String(help[..<start.lowerBound]) }
    help = help.replacing(/\s\([^)]*\)/, with: "")
    guard let list = help.ranges(of: ": ").last.map({ help[$0.upperBound...] }) else { return [] }
    let words = list.replacing(", or ", with: ", ").replacing(" or ", with: ", ").split(separator: ", ").map(
      String.init)
    let found = words.filter { word in word.allSatisfy { $0.isLetter || $0.isNumber || "_-".contains($0) } }
    return found.count > 1 ? found : []
  }

  private static var subcommands: [CommandLineSyntax] { SluiceCommand.subcommands.map(\.syntax) }
  private static var helpNames: [String] {
    subcommands.map(\.name) + SluiceCommand.topics.map(\.name) + ["exit-codes", "man", "completions"]
  }

  /// The words of an option, as they are typed.
  private static func words(_ option: Option) -> [String] {
    (option.short.map { ["-\($0)"] } ?? []) + ["--\(option.name)"]
  }

  // MARK: bash

  private static var bash: String {
    var cases = ""
    for syntax in subcommands {
      let options = syntax.allOptions
      let all = options.map { "--\($0.name)" }.joined(separator: " ")
      var values = ""
      for option in options where option.value != nil {
        let action =
          isPath(option)
          ? "COMPREPLY=($(compgen -f -- \"$word\"))"
          : choices(option).isEmpty
            ? "COMPREPLY=()" : "COMPREPLY=($(compgen -W '\(choices(option).joined(separator: " "))' -- \"$word\"))"
        values += "        \(words(option).joined(separator: "|"))) \(action); return ;;\n"
      }
      cases += """
            \(syntax.name))
              case $before in
        \(values)      esac
              case $word in
                -*) COMPREPLY=($(compgen -W '\(all)' -- "$word")) ;;
        \(actions(syntax))        *) COMPREPLY=($(compgen -f -- "$word")) ;;
              esac ;;

        """
    }
    return """
      # Completions of sluice for bash. Made by: sluice help completions bash
      _sluice() {
        local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
        if [[ $COMP_CWORD == 1 ]]; then
          COMPREPLY=($(compgen -W '\(subcommands.map(\.name).joined(separator: " ")) help --help --version' -- "$word"))
          return
        fi
        case ${COMP_WORDS[1]} in
          help) COMPREPLY=($(compgen -W '\((helpNames + shells).joined(separator: " "))' -- "$word")) ;;
      \(cases)  esac
      }
      complete -o filenames -F _sluice sluice
      """
  }

  /// The branch for the first operand.
  private static func actions(_ syntax: CommandLineSyntax) -> String {
    guard !syntax.actions.isEmpty else { return "" }
    let words = syntax.actions.map(\.label).joined(separator: " ")
    return
      "        *) if [[ $COMP_CWORD == 2 ]]; then COMPREPLY=($(compgen -W '\(words)' -- \"$word\")); return; fi ;;&\n"
  }

  // MARK: zsh

  /// Within single quotation marks, and within the brackets of a specification of _arguments.
  private static func zshQuoted(_ text: String) -> String {
    text.replacing("'", with: "'\\''").replacing("[", with: "\\[").replacing("]", with: "\\]").replacing(
      ":", with: "\\:")
  }

  private static var zsh: String {
    var cases = ""
    for syntax in subcommands {
      var lines: [String] = []
      for option in syntax.allOptions {
        let names = words(option)
        let value = option.value.map { value -> String in
          let action =
            isPath(option) ? "_files" : choices(option).isEmpty ? "" : "(\(choices(option).joined(separator: " ")))"
          return ":\(zshQuoted(value)):\(action)"
        }
        let exclusion = option.mayRepeat ? "*" : "(\(names.joined(separator: " ")))"
        for name in names { lines.append("'\(exclusion)\(name)[\(zshQuoted(option.help))]\(value ?? "")'") }
      }
      if !syntax.actions.isEmpty {
        lines.append("'1:action:(\(syntax.actions.map(\.label).joined(separator: " ")))'")
      }
      lines.append("'*:operand:_files'")
      cases +=
        "    \(syntax.name))\n      _arguments -s \\\n        " + lines.joined(separator: " \\\n        ") + " ;;\n"
    }
    let names = subcommands.map { "'\($0.name):\(zshQuoted($0.summary))'" } + ["'help:print help'"]
    return """
      #compdef sluice
      # Completions of sluice for zsh. Made by: sluice help completions zsh
      _sluice() {
        local -a subcommands
        if (( CURRENT == 2 )); then
          subcommands=(
            \(names.joined(separator: "\n      "))
          )
          _describe subcommand subcommands
          return
        fi
        local subcommand=$words[2]
        words=("${(@)words[2,-1]}")
        (( CURRENT-- ))
        case $subcommand in
          help) _arguments '*:topic:(\((helpNames + shells).joined(separator: " ")))' ;;
      \(cases)  esac
      }
      if [[ $funcstack[1] == _sluice ]]; then _sluice "$@"; else compdef _sluice sluice; fi
      """
  }

  // MARK: fish

  private static func fishQuoted(_ text: String) -> String {
    "'" + text.replacing("\\", with: "\\\\").replacing("'", with: "\\'") + "'"
  }

  private static var fish: String {
    var lines = [
      "# Completions of sluice for fish. Made by: sluice help completions fish",
      "complete -c sluice -n __fish_use_subcommand -l help -d 'print help'",
      "complete -c sluice -n __fish_use_subcommand -l version -d 'print the version'",
    ]
    for syntax in subcommands {
      lines.append("complete -c sluice -f -n __fish_use_subcommand -a \(syntax.name) -d \(fishQuoted(syntax.summary))")
    }
    lines.append("complete -c sluice -f -n __fish_use_subcommand -a help -d 'print help'")
    lines.append(
      "complete -c sluice -f -n '__fish_seen_subcommand_from help' -a \(fishQuoted((helpNames + shells).joined(separator: " ")))"
    )
    for syntax in subcommands {
      for action in syntax.actions {
        lines.append(
          "complete -c sluice -n '__fish_seen_subcommand_from \(syntax.name)' -a \(action.label) -d \(fishQuoted(action.text))"
        )
      }
      for option in syntax.allOptions {
        var line = "complete -c sluice -n '__fish_seen_subcommand_from \(syntax.name)' -l \(option.name)"
        if let short = option.short { line += " -s \(short)" }
        if option.value != nil { line += isPath(option) ? " -r -F" : " -x" }
        if !choices(option).isEmpty { line += " -a \(fishQuoted(choices(option).joined(separator: " ")))" }
        lines.append(line + " -d \(fishQuoted(option.help))")
      }
    }
    return lines.joined(separator: "\n")
  }
}
