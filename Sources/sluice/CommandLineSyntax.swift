// The command line as a table with one row per option. Parsing and `--help` both follow from it.
//
// getopt_long(3) was considered. It accepts any abbreviation, does not report an option that is given twice, and cannot
// suggest the nearest option for a mistyped one.

internal import JSONDocuments

/// One option of a subcommand.
struct Option: Sendable {
  /// Without the leading hyphens.
  let name: String
  let short: Character?
  /// The placeholder of its value in the help. Nil for a switch.
  let value: String?
  let help: String
  let mayRepeat: Bool

  init(_ name: String, short: Character? = nil, value: String? = nil, _ help: String, mayRepeat: Bool = false) {
    self.name = name
    self.short = short
    self.value = value
    self.help = help
    self.mayRepeat = mayRepeat
  }
}

/// A separate page, `sluice help NAME`, for a table or for options that do not fit in `--help`.
struct HelpTopic: Sendable {
  let name: String
  let title: String
  /// Options that the subcommand also accepts.
  var options: [Option] = []
  var rows: [(label: String, text: String)] = []
  /// Sentences below the table.
  var notes: [String] = []

  var page: String {
    var lines = HelpLayout.wrapped(title + ":") + [""]
    lines += options.isEmpty ? HelpLayout.table(rows) : HelpLayout.table(options)
    if !notes.isEmpty { lines += [""] + notes.flatMap { HelpLayout.wrapped($0) } }
    return lines.joined(separator: "\n")
  }
}

/// The operands and options of a subcommand.
struct CommandLineSyntax: Sendable {
  let name: String
  let summary: String
  /// Names of the operands, all required. The last one may be repeated if its name ends with `…`.
  let operands: [String]
  /// The possible words for the first operand and their effects, if it is one of a fixed set.
  var actions: [(label: String, text: String)] = []
  /// Shown by `--help`.
  let options: [Option]
  /// Topics with further options that the subcommand accepts.
  var topics: [HelpTopic] = []
  /// Options of other subcommands that have no effect here, each with the reason.
  var refusals: [(option: String, reason: String)] = []
  /// Sentences that `--help` shows before the example.
  var notes: [String] = []
  /// A complete, working command line.
  let example: String
  /// An option that makes the operands unnecessary.
  var optionWithoutOperands: String?
  /// The number of required operands. Nil means all.
  var requiredOperands: Int?

  static let helpOption = Option("help", short: "h", "print this help")

  var allOptions: [Option] { options + topics.flatMap(\.options) + [Self.helpOption] }

  /// The given values, in the order of the command line.
  struct Values {
    fileprivate(set) var operands: [String] = []
    fileprivate(set) var options: [String: [String]] = [:]

    subscript(name: String) -> String? { options[name]?.last }
    func all(_ name: String) -> [String] { options[name] ?? [] }
    func has(_ name: String) -> Bool { options[name] != nil }
  }

  /// - Throws: ``CommandError`` with exit code 64 that names the mistake and, for a mistyped option, the nearest
  ///   option.
  func parse(_ arguments: ArraySlice<String>) throws(CommandError) -> Values {
    var values = Values()
    var rest = arguments
    var onlyOperands = false
    while let argument = rest.popFirst() {
      if argument == "--", !onlyOperands {
        onlyOperands = true
      } else if onlyOperands || argument == "-" || !argument.hasPrefix("-") {
        values.operands.append(argument)
      } else {
        try take(argument, &rest, &values)
      }
    }
    if values.has("help") { return values }
    for (first, second) in Self.conflicts where values.has(first) && values.has(second) {
      throw .usage("--\(first) and --\(second) contradict each other. Choose one.")
    }
    if values.operands.isEmpty, let option = optionWithoutOperands, values.has(option) { return values }
    if values.operands.count < requiredOperands ?? operands.count {
      throw .usage("\(operands[values.operands.count]) is missing. Usage: \(usage)")
    }
    if values.operands.count > operands.count, operands.last?.hasSuffix("…") != true {
      throw .usage("\(values.operands[operands.count].shown) is one argument too many. Usage: \(usage)")
    }
    // As the path of a directory, it would be the root of the file system.
    if let index = values.operands.firstIndex(of: "") {
      throw .usage("\(operands[min(index, operands.count - 1)]) \"\": the argument is empty. Usage: \(usage)")
    }
    return values
  }

  /// Pairs of options that exclude each other, in any subcommand that has both.
  private static let conflicts = [
    ("ipv4", "ipv6"), ("http1", "http2"), ("resume", "abandon"), ("merge", "compare"), ("discard", "directory"),
    ("netrc", "netrc-file"),
  ]

  private func take(_ argument: String, _ rest: inout ArraySlice<String>, _ values: inout Values) throws(CommandError) {
    let parts = argument.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false).map(String.init)
    let written = parts[0]
    var inline = parts.count == 2 ? parts[1] : nil
    var found = allOptions.first { written == "--\($0.name)" || $0.short.map { written == "-\($0)" } ?? false }
    if found == nil, !written.hasPrefix("--"), written.count > 2 {
      // A short option with its value attached, as in -HName:value.
      found = allOptions.first { $0.value != nil && $0.short == written.dropFirst().first }
      if found != nil { inline = String(argument.dropFirst(2)) }
    }
    guard let option = found else { throw .usage(unknown(written)) }
    if values.has(option.name), !option.mayRepeat {
      throw .usage("--\(option.name) is given twice. Give it once.")
    }
    if let placeholder = option.value {
      // The name of an option is not a value unless it is attached. The user forgot the value.
      let isNext = rest.first.map { next in allOptions.contains { next == "--\($0.name)" } } ?? false
      guard let value = inline ?? (isNext ? nil : rest.popFirst()) else {
        throw .usage("--\(option.name) requires a value. Write --\(option.name) \(placeholder).")
      }
      guard !value.isEmpty else {
        throw .usage("--\(option.name) \"\": the value is empty. Write --\(option.name) \(placeholder).")
      }
      guard !value.unicodeScalars.contains(where: { $0.value < 0x20 && $0 != "\t" || (0x7F..<0xA0).contains($0.value) })
      else { throw .usage("--\(option.name) \(value.shown): the value has control characters. Remove them.") }
      values.options[option.name, default: []].append(value)
    } else {
      if inline != nil { throw .usage("--\(option.name) takes no value. Leave the value out.") }
      values.options[option.name, default: []].append("")
    }
  }

  private func unknown(_ written: String) -> String {
    if let refusal = refusals.first(where: { written == "--\($0.option)" }) {
      return "\(written) does not apply to sluice \(name): \(refusal.reason). Leave it out."
    }
    let names = allOptions.map { "--\($0.name)" }
    // The beginning of a name stands for that name, regardless of the number of missing letters.
    let nearest =
      names.first { written.count > 3 && $0.hasPrefix(written) }
      ?? Spelling.similar(to: written, of: names, within: max(2, written.count / 3), sharing: 3)
    let hint = nearest.map { ". Did you mean \($0)?" } ?? "."
    return "unknown option \(written.escaped)\(hint) See: sluice \(name) --help"
  }

  // MARK: Help

  var usage: String { (["sluice", name] + operands + ["[options]"]).joined(separator: " ") }

  /// Whether an option takes a time or a size.
  private var hasUnits: Bool {
    allOptions.contains { option in
      option.value?.split { !$0.isLetter }.contains { $0 == "T" || $0 == "SIZE" } ?? false
    }
  }

  /// The topics with further options, and the units of their values.
  var allTopics: [HelpTopic] { topics + (hasUnits ? [Units.topic] : []) }

  var help: String {
    var lines = ["usage: \(usage)", ""] + HelpLayout.wrapped(summary) + [""]
    if !actions.isEmpty { lines += ["Actions:"] + HelpLayout.table(actions) + ["", "Options:"] }
    lines += HelpLayout.table(options + [Self.helpOption])
    let more = allTopics
    if !more.isEmpty {
      lines += ["", "More options:"]
      lines += HelpLayout.table(more.map { (label: "sluice help \($0.name)", text: $0.title.lowercasedFirst) })
    }
    if !notes.isEmpty { lines += [""] + notes.flatMap { HelpLayout.wrapped($0) } }
    lines += ["", "Example:", "  \(example)"]
    return lines.joined(separator: "\n")
  }
}
