// Finds the line of a value in a document. Jansson reports lines only for errors in the JSON itself.

/// Searches for values in a text that is known to be JSON.
enum JSONLocator {
  /// The line, from 1, in which the value of a path begins, or otherwise the last existing value above it.
  static func line(of path: JSONPath, in text: [UInt8]) -> Int? {
    var scanner = Scanner(text: text)
    var line = scanner.lineOfNext()
    for step in path.steps {
      guard scanner.enter(step) else { break }
      line = scanner.lineOfNext()
    }
    return line
  }

  private struct Scanner {
    let text: [UInt8]
    var position = 0
    var line = 1

    mutating func lineOfNext() -> Int {
      skipSpace()
      return line
    }

    /// Moves from the beginning of a container to the beginning of one of its values.
    mutating func enter(_ step: JSONPath.Step) -> Bool {
      guard next() == "{" || next() == "[" else { return false }
      position += 1
      var index = 0
      while let character = next(), character != "}", character != "]" {
        switch step {
        case .key(let wanted):
          let key = string()
          guard next() == ":" else { return false }
          position += 1
          if key == Array(wanted.utf8) { return true }
        case .index(let wanted):
          if index == wanted { return true }
        }
        skipValue()
        index += 1
        if next() == "," { position += 1 }
      }
      return false
    }

    private mutating func next() -> Character? {
      skipSpace()
      return position < text.count ? Character(Unicode.Scalar(text[position])) : nil
    }

    private mutating func skipSpace() {
      while position < text.count, [0x20, 0x09, 0x0A, 0x0D].contains(text[position]) {
        if text[position] == 0x0A { line += 1 }
        position += 1
      }
    }

    /// The bytes of a string with its escapes unchanged, because the keys in question contain none.
    private mutating func string() -> [UInt8] {
      position += 1
      let start = position
      while position < text.count, text[position] != UInt8(ascii: "\"") {
        position += text[position] == UInt8(ascii: "\\") ? 2 : 1
      }
      let end = min(position, text.count)
      position += 1
      return Array(text[min(start, end)..<end])
    }

    private mutating func skipValue() {
      var depth = 0
      while let character = next() {
        switch character {
        case "\"": _ = string()
        case "{", "[":
          depth += 1
          position += 1
        case "}", "]":
          // The end of the container of the value.
          if depth == 0 { return }
          depth -= 1
          position += 1
        case ",":
          if depth == 0 { return }
          position += 1
        default: position += 1
        }
      }
    }
  }
}
