// Reads one text from the JSON of another program.

/// The text that `text`, a JSON object, has under `key`; nil for anything else.
package func stringMember(_ key: String, ofJSON text: [UInt8]) -> String? {
  guard let document = try? JSONDocument(text, root: "object", file: ""),
    case .object(let members) = document.root.value,
    case .string(let value)? = members.first(where: { $0.key == key })?.value
  else { return nil }
  return value
}
