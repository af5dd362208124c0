// Finds a Basic challenge in a response (RFC 9110, section 11.6.1; RFC 7617).

internal import HTTPMessages
internal import UploadClient

/// A challenge for user and password.
struct BasicChallenge: Equatable {
  /// nil if the server does not specify one.
  var realm: String?

  /// Nil if the response offers no Basic authentication. One field may list several challenges, and a response may have
  /// several fields.
  init?(_ response: HTTPResponse) {
    self.init(response.fields["WWW-Authenticate"] ?? "")
  }

  /// - Parameter list: `#challenge`, where `challenge = auth-scheme [ 1*SP ( token68 / #auth-param ) ]`.
  init?(_ list: String) {
    var isBasic = false
    var wasFound = false
    for element in Self.elements(of: list) {
      let word = element.prefix { !" \t=".contains($0) }
      var rest = element[word.endIndex...].drop { " \t".contains($0) }
      if rest.first != "=" {
        // A scheme. The first Basic challenge counts.
        isBasic = !wasFound && word.equals(lowercase: "basic")
        if isBasic { wasFound = true }
      } else {
        rest = element[...]
      }
      guard isBasic, let equals = rest.firstIndex(of: "=") else { continue }
      let name = rest[..<equals].filter { !" \t".contains($0) }.lowercasedASCII
      if name == "realm", realm == nil { realm = Self.unquoted(rest[rest.index(after: equals)...]) }
    }
    guard wasFound else { return nil }
  }

  /// The text between commas outside quoted strings, without surrounding white space.
  private static func elements(of list: String) -> [Substring] {
    var elements: [Substring] = []
    var start = list.startIndex
    var (isQuoted, isEscaped) = (false, false)
    for index in list.indices {
      let character = list[index]
      if isEscaped {
        isEscaped = false
      } else if isQuoted, character == "\\" {
        isEscaped = true
      } else if character == "\"" {
        isQuoted.toggle()
      } else if character == ",", !isQuoted {
        elements.append(list[start..<index])
        start = list.index(after: index)
      }
    }
    elements.append(list[start...])
    return elements.map { trimmed($0) }.filter { !$0.isEmpty }
  }

  private static func trimmed(_ text: Substring) -> Substring {
    var text = text.drop { " \t".contains($0) }
    while let last = text.last, " \t".contains(last) { text.removeLast() }
    return text
  }

  /// The content of a quoted string (RFC 9110, section 5.6.4), or an unquoted token unchanged.
  private static func unquoted(_ value: Substring) -> String {
    let value = trimmed(value)
    guard value.first == "\"" else { return String(value) }
    var result = ""
    var isEscaped = false
    for character in value.dropFirst() {
      if isEscaped {
        isEscaped = false
      } else if character == "\\" {
        isEscaped = true
        continue
      } else if character == "\"" {
        break
      }
      result.append(character)
    }
    return result
  }
}
