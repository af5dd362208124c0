// A strict parser of the format, written from the specification and not from our writer.

struct ExpositionError: Error, CustomStringConvertible {
  let description: String
}

/// A parsed page. Throws for everything that promtool would report.
struct ExpositionParser {
  struct Sample {
    var name: String
    var labels: [String: String]
    var value: Double
  }

  private(set) var help: [String: String] = [:]
  private(set) var types: [String: String] = [:]
  private(set) var samples: [Sample] = []

  static func parse(_ text: String) throws -> ExpositionParser {
    var page = ExpositionParser()
    guard text.isEmpty || text.utf8.last == 0x0A else { throw ExpositionError(description: "no line feed at the end") }
    for line in text.utf8.split(separator: 0x0A) { try page.read(String(decoding: line, as: UTF8.self)) }
    for name in page.help.keys where page.types[name] == nil {
      throw ExpositionError(description: "\(name) has no type")
    }
    return page
  }

  private mutating func read(_ line: String) throws {
    func fail(_ reason: String) -> ExpositionError { ExpositionError(description: "\(reason): \(line)") }
    if line.hasPrefix("# ") {
      let parts = line.split(separator: " ", maxSplits: 3, omittingEmptySubsequences: false).map(String.init)
      guard parts.count == 4 else { throw fail("a comment that is neither HELP nor TYPE") }
      if parts[1] == "HELP" {
        guard help.updateValue(try Self.unescaped(parts[3], quotes: false), forKey: parts[2]) == nil else {
          throw fail("a second HELP")
        }
      } else {
        guard parts[1] == "TYPE", ["counter", "gauge", "histogram"].contains(parts[3]) else { throw fail("no TYPE") }
        guard types.updateValue(parts[3], forKey: parts[2]) == nil else { throw fail("a second TYPE") }
      }
      return
    }
    var rest = Substring(line)
    let name = String(rest.prefix { $0 != "{" && $0 != " " })
    rest = rest.dropFirst(name.count)
    var labels: [String: String] = [:]
    if rest.first == "{" {
      repeat {
        rest = rest.dropFirst()
        let label = rest.prefix { $0 != "=" }
        rest = rest.dropFirst(label.count)
        guard rest.hasPrefix("=\"") else { throw fail("a label without a value") }
        rest = rest.dropFirst(2)
        var raw = ""
        while let character = rest.first, character != "\"" {
          raw.append(character)
          rest = rest.dropFirst()
          if character == "\\", let next = rest.first {
            raw.append(next)
            rest = rest.dropFirst()
          }
        }
        guard rest.first == "\"" else { throw fail("a value without an end") }
        rest = rest.dropFirst()
        guard labels.updateValue(try Self.unescaped(raw, quotes: true), forKey: String(label)) == nil else {
          throw fail("a label twice")
        }
      } while rest.first == ","
      guard rest.first == "}" else { throw fail("labels without an end") }
      rest = rest.dropFirst()
    }
    guard rest.first == " ", let value = Double(rest.dropFirst()) else { throw fail("no value") }
    let family =
      ["_bucket", "_sum", "_count"].first {
        name.hasSuffix($0) && types[String(name.dropLast($0.count))] == "histogram"
      }
      .map { String(name.dropLast($0.count)) } ?? name
    guard let type = types[family] else { throw fail("a sample before its TYPE") }
    if type == "counter" {
      guard name.hasSuffix("_total"), value >= 0 else { throw fail("a counter is not named or below zero") }
    }
    guard !samples.contains(where: { $0.name == name && $0.labels == labels }) else { throw fail("a sample twice") }
    samples.append(Sample(name: name, labels: labels, value: value))
  }

  private static func unescaped(_ text: String, quotes: Bool) throws -> String {
    var result = ""
    var scalars = text.unicodeScalars.makeIterator()
    while let scalar = scalars.next() {
      guard scalar == "\\" else {
        result.unicodeScalars.append(scalar)
        continue
      }
      switch scalars.next() {
      case "\\": result += "\\"
      case "n": result += "\n"
      case "\"" where quotes: result += "\""
      default: throw ExpositionError(description: "an escape that there is not: \(text)")
      }
    }
    return result
  }
}
