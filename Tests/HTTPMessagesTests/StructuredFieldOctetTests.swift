// The grammar of RFC 9651, section 3, for each octet and each number of digits. These are the rules from which the
// working group's vectors were generated.

import PropertyTesting
import Testing

@testable import HTTPMessages

@Suite("Structured fields: each octet") struct StructuredFieldOctetTests {
  private static let lowercase = Set(UInt8(ascii: "a")...UInt8(ascii: "z"))
  private static let letters = lowercase.union(UInt8(ascii: "A")...UInt8(ascii: "Z"))
  private static let digits = Set(UInt8(ascii: "0")...UInt8(ascii: "9"))
  /// `tchar` of RFC 9110, section 5.6.2, with colon and slash.
  private static let tokenOctets = letters.union(digits).union("!#$%&'*+-.^_`|~:/".utf8)
  private static let keyOctets = lowercase.union(digits).union("_-.*".utf8)

  /// Octets in a field's value. Invalid UTF-8 becomes U+FFFD, as in received fields.
  private static func text(_ pieces: [UInt8]...) -> String { String(decoding: pieces.joined(), as: UTF8.self) }

  @Test("a key begins with a lower-case letter or a star, and continues with these, digits, _ - and .")
  func keys() {
    for octet in UInt8.min...UInt8.max { keys(octet) }
  }

  private func keys(_ octet: UInt8) {
    let isFirst = Self.lowercase.contains(octet) || octet == UInt8(ascii: "*")
    let isLater = Self.keyOctets.contains(octet)
    for rest in ["=1", "a=1"] {
      let key = StructuredDictionary(parsing: Self.text([octet], Array(rest.utf8)))?.members.first?.key
      #expect((key?.utf8.first == octet) == isFirst, "octet \(octet)")
    }
    // `a=a=1` and `a,a=1` do not have keys of three characters, but one of them is a dictionary.
    let later = StructuredDictionary(parsing: Self.text([0x61, octet], Array("a=1".utf8)))
    #expect((later?.members.first?.key.utf8.count == 3) == isLater, "octet \(octet)")
    let inParameters = Item(parsing: Self.text(Array("t; ".utf8), [octet], Array("a=1".utf8)))
    // A space there is skipped.
    #expect((inParameters != nil) == (isFirst || octet == 0x20), "octet \(octet)")

    // The same for writing. Text that was not parsed is not known to be a key.
    guard octet < 0x80 else { return }
    for (key, isKey) in [(Self.text([octet, 0x61]), isFirst), (Self.text([0x61, octet, 0x61]), isLater)] {
      var dictionary = StructuredDictionary()
      dictionary.set(key, .item(Item(.integer(1))))
      #expect((dictionary.serialized != nil) == isKey)
      #expect((Item(.integer(1), [Parameter(key: key, value: .boolean(true))]).serialized != nil) == isKey)
    }
  }

  @Test("a token begins with a letter or a star, and continues with tchar, colon and slash")
  func tokens() {
    for octet in UInt8.min...UInt8.max { tokens(octet) }
  }

  private func tokens(_ octet: UInt8) {
    let isFirst = Self.letters.contains(octet) || octet == UInt8(ascii: "*")
    let isLater = Self.tokenOctets.contains(octet)
    for (text, isToken) in [(Self.text([octet, 0x61]), isFirst), (Self.text([0x61, octet, 0x61]), isLater)] {
      // A leading space belongs to the field and not to the token, and the parser may skip it.
      if text.utf8.first != 0x20 { #expect((Item(parsing: text)?.value == .token(text)) == isToken) }
      if octet < 0x80 { #expect((BareItem.token(text).serialized == text) == isToken) }
    }
  }

  @Test("a string contains printable ASCII, and only quote and backslash are escaped")
  func strings() {
    for octet in UInt8.min...UInt8.max { strings(octet) }
  }

  private func strings(_ octet: UInt8) {
    let isPrintable = (0x20...0x7e).contains(octet)
    let needsEscape = octet == UInt8(ascii: "\"") || octet == UInt8(ascii: "\\")
    let quote = UInt8(ascii: "\"")
    #expect(
      (Item(parsing: Self.text([quote, 0x20, octet, 0x20, quote])) != nil) == (isPrintable && !needsEscape),
      "octet \(octet)")
    #expect(
      (Item(parsing: Self.text([quote, UInt8(ascii: "\\"), octet, quote])) != nil) == needsEscape, "octet \(octet)")
    guard octet < 0x80 else { return }
    let text = Self.text([octet])
    #expect((BareItem.string(text).serialized != nil) == isPrintable, "octet \(octet)")
    if isPrintable { #expect(BareItem.string(text).serialized.flatMap { Item(parsing: $0) }?.value == .string(text)) }
  }

  @Test("a display string contains any text, percent-encoded in lower case")
  func displayStrings() {
    for octet in UInt8.min...UInt8.max { displayStrings(octet) }
  }

  private func displayStrings(_ octet: UInt8) {
    let isPlain = (0x20...0x7e).contains(octet) && octet != UInt8(ascii: "%") && octet != UInt8(ascii: "\"")
    #expect(
      (Item(parsing: Self.text(Array("%\"".utf8), [octet], [UInt8(ascii: "\"")])) != nil) == isPlain, "octet \(octet)")
    let digits = String(octet, radix: 16)
    let encoded = "%\"%" + (digits.count < 2 ? "0" : "") + digits + "\""
    // From 0x80 on, a single octet is not valid UTF-8.
    #expect((Item(parsing: encoded) != nil) == (octet < 0x80), "octet \(octet)")
    #expect(
      (Item(parsing: encoded.uppercased()) != nil) == (octet < 0x80 && encoded == encoded.uppercased()),
      "octet \(octet)")
    let scalar = String(Unicode.Scalar(octet))
    #expect(BareItem.displayString(scalar).serialized.flatMap { Item(parsing: $0) }?.value == .displayString(scalar))
  }

  @Test("a boolean is ?0 or ?1")
  func booleans() {
    for octet in UInt8.min...UInt8.max { booleans(octet) }
  }

  private func booleans(_ octet: UInt8) {
    let value = Item(parsing: Self.text([UInt8(ascii: "?"), octet]))?.value
    switch octet {
    case UInt8(ascii: "0"): #expect(value == .boolean(false))
    case UInt8(ascii: "1"): #expect(value == .boolean(true))
    default: #expect(value == nil)
    }
    #expect(
      Item(parsing: Self.text(Array("?1".utf8), [octet])) == (octet == 0x20 ? Item(.boolean(true)) : nil),
      "octet \(octet)")
  }

  @Test("an integer has 1 to 15 digits, a decimal 1 to 12 and then 1 to 3")
  func numbers() {
    for whole in 0...18 { for fraction in 0...5 { numbers(whole, fraction) } }
  }

  private func numbers(_ whole: Int, _ fraction: Int) {
    for digit in ["0", "1", "9"] {
      for sign in ["", "-"] {
        let digits = String(repeating: digit, count: whole)
        let integer = Item(parsing: sign + digits)
        #expect((integer != nil) == (1...15).contains(whole), "\(whole).\(fraction)")
        #expect((Item(parsing: "@" + sign + digits) != nil) == (1...15).contains(whole), "\(whole).\(fraction)")
        if let integer { #expect(integer.value == Int64(sign + digits).map { .integer($0) }) }

        let decimals = String(repeating: digit, count: fraction)
        let decimal = Item(parsing: "\(sign)\(digits).\(decimals)")
        #expect((decimal != nil) == ((1...12).contains(whole) && (1...3).contains(fraction)), "\(whole).\(fraction)")
        let thousandths = Int64(sign + digits + decimals + String(repeating: "0", count: max(0, 3 - fraction)))
        if let decimal { #expect(decimal.value == thousandths.map { .decimal(thousandths: $0) }) }
        #expect(Item(parsing: "@\(sign)\(digits).\(decimals)") == nil)
      }
    }
  }

  @Test("a number that is too large to be read is not written")
  func limits() {
    let largest = BareItem.largestInteger
    for value in [largest, -largest, 0] {
      #expect(BareItem.integer(value).serialized == "\(value)")
      #expect(BareItem.date(value).serialized == "@\(value)")
      #expect(BareItem.decimal(thousandths: value).serialized.flatMap { Item(parsing: $0) } != nil)
    }
    for value in [largest + 1, -largest - 1, .max, .min] {
      #expect(BareItem.integer(value).serialized == nil)
      #expect(BareItem.date(value).serialized == nil)
      #expect(BareItem.decimal(thousandths: value).serialized == nil)
    }
  }

  /// The processor time in which `count` keys, and as many parameters, are read.
  private static func time(forKeys count: Int) -> Duration {
    let keys = (0..<count).map { "k\($0)" }
    let begin = threadTime()
    #expect(StructuredDictionary(parsing: keys.joined(separator: ","))?.members.count == count)
    #expect(Item(parsing: "1;" + keys.joined(separator: ";"))?.parameters.count == count)
    // The last of equal keys counts, at the position of the first.
    let twice = StructuredDictionary(parsing: "a=1, b, " + keys.joined(separator: ",") + ", a=2")
    #expect(twice?.members.count == count + 2 && twice?.members.first?.value == .item(Item(.integer(2))))
    return threadTime() - begin
  }

  @Test("a dictionary of 100,000 keys, and as many parameters, is read in linear time")
  func manyKeys() {
    // Comparing all keys with each other would take a hundred times as long.
    #expect(Self.time(forKeys: 100_000) < Self.time(forKeys: 10_000) * 40)
    #expect(Item(parsing: "1;a=1;b;a=?0")?.parameters.map(\.key) == ["a", "b"])
  }
}
