// Help as text of at most 80 columns, in tables of two columns whose right column wraps.

enum HelpLayout {
  static let width = 80
  /// The widest label for the right column of options. A wider label has a line of its own.
  private static let widestLabel = 28

  static func table(_ options: [Option]) -> [String] {
    table(
      options.map { option in
        let short = option.short.map { "-\($0), " } ?? ""
        return (label: short + "--\(option.name)" + (option.value.map { " \($0)" } ?? ""), text: option.help)
      })
  }

  /// Labels on the left, texts on the right. A label that is too wide has a line of its own.
  static func table(_ rows: [(label: String, text: String)]) -> [String] {
    let column = 4 + (rows.map(\.label.count).filter { $0 <= widestLabel }.max() ?? 0)
    return rows.flatMap { label, text in
      let lines = wrapped(text, indentation: column)
      guard label.count <= column - 4 else { return ["  " + label] + lines }
      let first = "  " + label + String(repeating: " ", count: column - 2 - label.count)
      return [first + lines[0].dropFirst(column)] + lines.dropFirst()
    }
  }

  /// Fills lines with words. A word that is longer than a line is not broken.
  static func wrapped(_ text: String, indentation: Int = 0) -> [String] {
    let margin = String(repeating: " ", count: indentation)
    var lines: [String] = []
    var line = ""
    for word in text.split(separator: " ") {
      if !line.isEmpty, indentation + line.count + 1 + word.count > width {
        lines.append(margin + line)
        line = ""
      }
      line += (line.isEmpty ? "" : " ") + word
    }
    return lines + [margin + line]
  }
}

extension String {
  /// The text as it appears in the middle of a sentence.
  var lowercasedFirst: String { prefix(1).lowercased() + dropFirst() }
}
