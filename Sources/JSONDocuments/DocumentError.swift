// What is wrong with a document that a person or another program wrote, and where.

/// A document that cannot be read, such as a profile or a report: `mic.json:3: profile.talk.length: a duration like "300ms", not true`.
public struct DocumentError: Error, Equatable, CustomStringConvertible, Sendable {
  /// The name that it was read by.
  public var file = ""
  /// From 1; nil where no line can be named.
  public var line: Int?
  /// Where in the document; empty where it is no JSON.
  var path: JSONPath?
  /// What was expected, or what is wrong.
  public var problem: String

  /// File, line, place and problem, on one line.
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
