// Finds the existing word that a user may have meant.

package enum Spelling {
  /// The nearest word by the number of insertions, deletions and replacements (``distance(_:_:)``), in quotation marks.
  /// Of several, the first.
  package static func nearest(to word: String, of words: [String]) -> String {
    let nearest = words.min { distance(word, $0) < distance(word, $1) }
    return nearest.map { "\"\($0)\"" } ?? "none"
  }

  /// The word that is fewest insertions, deletions and replacements away, or nil if it is more than `limit` away. A
  /// word that differs within its first letters is similar only if it is one letter away.
  ///
  /// - Parameter prefix: the number of these first letters.
  package static func similar(
    to word: String, of words: [String], within limit: Int = 2, sharing prefix: Int = 1
  ) -> String? {
    let candidates = words.filter { $0.prefix(prefix) == word.prefix(prefix) || distance(word, $0) == 1 }
    return candidates.min { distance(word, $0) < distance(word, $1) }.flatMap {
      distance(word, $0) <= limit ? $0 : nil
    }
  }

  /// Levenshtein's distance.
  static func distance(_ first: String, _ second: String) -> Int {
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
