// Fields that cannot be invalid.

import HTTPMessages
import PropertyTesting
import Testing

@Suite("Header fields")
struct HeaderFieldTests {
  @Test("for any octets in a name and a value, only valid fields are added", arguments: Seed.several(1))
  func validByConstruction(_ seed: Seed) {
    var generator = seed.generator
    for _ in 0..<20_000 {
      let name = text(&generator)
      let value = text(&generator)
      var fields = HeaderFields()
      fields.append(name, value)
      let isToken = !name.isEmpty && name.utf8.allSatisfy { tokenOctets.contains($0) }
      let isContent = value.utf8.allSatisfy { $0 == 9 || $0 >= 32 && $0 != 127 }
      #expect(fields.isValid == (isToken && isContent), "\(seed) \(name.debugDescription): \(value.debugDescription)")
      #expect(fields.invalidName == (fields.isValid ? nil : name), "\(seed)")
      #expect(fields.all.count == (fields.isValid ? 1 : 0))
      for field in fields.all {
        #expect(!field.value.utf8.contains { $0 == 13 || $0 == 10 || $0 == 0 })
        let ends = [field.value.utf8.first, field.value.utf8.last]
        #expect(!ends.contains(32) && !ends.contains(9), "white space around a value is not part of it")
      }
    }
  }

  @Test("a received field stays a field, and has only valid octets in its value")
  func received() {
    let fields = HeaderFields(received: [
      (name: "Upload-Offset", value: "5\u{0}"), (name: "A B", value: "x"), (name: "", value: "x"),
      (name: "X", value: " a\r\nB: c "), (name: "Y", value: "\u{e9}"),
    ])
    #expect(fields.all.map(\.name) == ["upload-offset", "x", "y"] && fields.isValid)
    #expect(fields["upload-offset"] == "5\u{FFFD}" && fields["X"] == "a\u{FFFD}\u{FFFD}B: c" && fields["y"] == "\u{e9}")
  }

  @Test("a field keeps the spelling of its name, and its name is equal to the same one in any case")
  func spelling() {
    var fields: HeaderFields = ["X-API-Key": "a"]
    fields.append(received: "eTAG", "b")
    #expect(fields.all.map(\.rawName) == ["X-API-Key", "eTAG"] && fields.all.map(\.name) == ["x-api-key", "etag"])
    #expect(fields == ["x-api-key": "a", "ETag": "b"] && fields.all.first == .init(name: "x-API-key", value: "a"))
    #expect(fields != ["X-API-Key": "A", "eTAG": "b"] && fields != ["eTAG": "b", "X-API-Key": "a"])
    // The Kelvin sign, which `lowercased()` converts to k, is not a letter of a name.
    #expect(fields["X-API-\u{212A}ey"] == nil)
    for name in ["X-API-Key", "x-api-key", "X-API-KEY"] {
      #expect(fields[name] == "a" && fields.first(name) == "a" && fields.single(name) == "a", "\(name)")
      #expect(fields.count(name) == 1 && fields.contains(name) && !fields.without([name]).contains(name), "\(name)")
    }
    fields.addDefault("etag", "c")
    fields.addDefault("Date", "d")
    #expect(fields.lines == ["X-API-Key: a", "eTAG: b", "Date: d"])
    #expect(fields.filter { $0 == "etag" }.lines == ["eTAG: b"])
    fields.append("ETag", "e")
    #expect(fields["etag"] == "b, e" && fields.first("ETAG") == "b" && fields.single("etag") == nil)
    #expect(fields.count("Etag") == 2)
  }

  @Test("fields name the first invalid one, whatever is added or removed afterwards")
  func invalidName() {
    var fields: HeaderFields = ["A": "1", "B": "2\n", "C D": "3"]
    #expect(fields.invalidName == "B" && !fields.isValid && fields.lines == ["A: 1"])
    fields.append("E", "4")
    #expect(fields.without(["a"]).invalidName == "B" && fields.filter { _ in false }.invalidName == "B")
    var others: HeaderFields = ["F": "5"]
    others.append(contentsOf: fields)
    #expect(others.invalidName == "B" && others.lines == ["F: 5", "A: 1", "E: 4"])
    others.append(contentsOf: ["": "6"])
    #expect(others.invalidName == "B" && HeaderFields().invalidName == nil)
  }

  @Test("fields are read from their lines, and a line without a colon is a name")
  func lines() {
    let fields: HeaderFields = ["X-API-Key": "a: b", "X-API-Key": "", "y": "\u{e9}"]
    #expect(HeaderFields(lines: fields.lines) == fields)
    #expect(HeaderFields(lines: ["X", "Y:z", " : z"]).lines == ["X: ", "Y: z"])
    #expect(HeaderFields(lines: [" : z"]).invalidName == " " && HeaderFields(lines: ["X:\u{0}"]).invalidName == "X")
  }

  private let tokenOctets = Set("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz".utf8)

  /// Mostly valid characters of fields, and sometimes arbitrary ones.
  private func text(_ generator: inout SplitMix64) -> String {
    let usual = Array("aZ09-_ \t:,;\"=".unicodeScalars)
    var text = String.UnicodeScalarView()
    for _ in 0..<Int.random(in: 0...8, using: &generator) {
      if Int.random(in: 0..<6, using: &generator) == 0 {
        text.append(Unicode.Scalar(UInt8.random(in: 0...255, using: &generator)))
      } else if Bool.random(using: &generator) {
        text.append("x")
      } else {
        text.append(usual[Int.random(in: 0..<usual.count, using: &generator)])
      }
    }
    return String(text)
  }

  @Test("names are equal regardless of the case of ASCII letters only")
  func folding() {
    for octet in UInt8.min...UInt8.max {
      let isUpper = (0x41...0x5A).contains(octet)
      #expect(Octet.lowercased(octet) == (isUpper ? octet + 32 : octet))
    }
    #expect("Stream-ID".lowercasedASCII == "stream-id")
    // The Kelvin sign, which `lowercased()` converts to k.
    #expect("\u{212A}".lowercasedASCII == "\u{212A}")
    #expect(SecretFields.contains("X-TOKEN") && !SecretFields.contains("X-TO\u{212A}EN"))
  }
}
