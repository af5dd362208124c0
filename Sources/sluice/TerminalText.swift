// The abilities of a terminal. Not every terminal can move the cursor or show characters beyond ASCII.

internal import Glibc

/// The abilities of a terminal, from the environment: `TERM` (terminfo(5)) and the locale (locale(7)).
struct TerminalText: Equatable, Sendable {
  /// Whether a line can be replaced in place.
  let canRedraw: Bool
  let isUnicode: Bool

  static let current = TerminalText { name in getenv(name).map { String(cString: $0) } }

  init(_ variable: (String) -> String?) {
    let terminal = variable("TERM") ?? ""
    canRedraw = !terminal.isEmpty && terminal != "dumb"
    // The first variable that is set and not empty decides.
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].lazy.compactMap(variable).first { !$0.isEmpty } ?? "C"
    let encoding = locale.uppercased()
    isUnicode = encoding.contains("UTF-8") || encoding.contains("UTF8")
  }

  /// The text as this terminal can show it, with the same number of characters.
  func shown(_ text: String) -> String {
    guard !isUnicode, !text.utf8.allSatisfy({ $0 < 0x80 }) else { return text }
    return String(text.map { $0.isASCII ? $0 : Self.substitutes[$0] ?? "?" })
  }

  private static let substitutes: [Character: Character] = [
    "–": "-", "—": "-", "…": "~", "’": "'", "‘": "'", "“": "\"", "”": "\"", "µ": "u", "→": ">", "×": "x", "·": "-",
    "▕": "|", "▏": "|", "▁": ".", "▂": ":", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%", "█": "#", "\u{A0}": " ",
  ]
}
