// Which of the words that there are somebody may have meant.

package enum Spelling {
  /// The word that is fewest insertions, deletions and replacements away (Levenshtein's distance), in quotation marks;
  /// of several the first.
  package static func nearest(to word: String, of words: [String]) -> String {
    let nearest = words.min { distance(word, $0) < distance(word, $1) }
    return nearest.map { "\"\($0)\"" } ?? "none"
  }

  private static func distance(_ first: String, _ second: String) -> Int {
    let second = Array(second.utf8)
    var row = Array(0...second.count)
    for (index, letter) in first.utf8.enumerated() {
      var diagonal = row[0]
      row[0] = index + 1
      for (column, other) in second.enumerated() {
        let replaced = diagonal + (letter == other ? 0 : 1)
        diagonal = row[column + 1]
        row[column + 1] = min(replaced, row[column] + 1, diagonal + 1)
      }
    }
    return row[second.count]
  }
}
