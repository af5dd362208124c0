// A mistake in a document from a person or another program, and its location.

/// An error in a document, such as a profile or a report: `mic.json:3: profile.talk.length: a duration like "300ms",
/// not true`.
public struct DocumentError: Error, Equatable, CustomStringConvertible, Sendable {
  /// The name of the document.
  public var file = ""
  /// The line number, from 1. Nil if it is unknown.
  public var line: Int?
  /// The path within the document. Nil if the document is not JSON.
  var path: JSONPath?
  /// The problem, or the expected value.
  public var problem: String

  /// File, line, path and problem on one line.
  public var description: String {
    [file + (line.map { ":\($0)" } ?? ""), path?.description ?? "", problem].filter { !$0.isEmpty }
      .joined(separator: ": ")
  }
}

/// The way from a document's root to a value: `profile.talk.length`, `report.parts[0].host`.
package struct JSONPath: Equatable, CustomStringConvertible, Sendable {
  package enum Step: Equatable, Sendable {
    case key(String)
    case index(Int)
  }

  /// What the document is.
  var root: String
  var steps: [Step] = []

  init(root: String) { self.root = root }

  package func appending(_ step: Step) -> JSONPath {
    var path = self
    path.steps.append(step)
    return path
  }

  package var description: String {
    steps.reduce(into: root) { text, step in
      switch step {
      case .key(let key): text += "." + key
      case .index(let index): text += "[\(index)]"
      }
    }
  }
}
