// Random structured fields: every type, every limit, and corrupted texts.

package import HTTPMessages

package struct RandomFields {
  package var random: SplitMix64

  package init(random: SplitMix64) { self.random = random }

  private static let keyFirst = Array("abcdefghijklmnopqrstuvwxyz*".utf8)
  private static let keyRest = keyFirst + Array("0123456789_-.".utf8)
  private static let tokenFirst = Array("abcxyzABCXYZ*".utf8)
  private static let tokenRest = tokenFirst + Array("0123456789!#$%&'+-.^_`|~:/".utf8)

  package mutating func item() -> Item { Item(bareItem(), parameters()) }

  package mutating func dictionary() -> StructuredDictionary {
    var dictionary = StructuredDictionary()
    for _ in 0..<Int.random(in: 0...6, using: &random) {
      if random.chance(25) {
        let items = (0..<Int.random(in: 0...4, using: &random)).map { _ in item() }
        dictionary.set(key(), .innerList(items, parameters: parameters()))
      } else {
        dictionary.set(key(), .item(item()))
      }
    }
    return dictionary
  }

  package mutating func bareItem() -> BareItem {
    switch Int.random(in: 0..<8, using: &random) {
    case 0: .integer(number())
    case 1: .decimal(thousandths: number())
    case 2: .string(text { UInt8.random(in: 0x20...0x7e, using: &$0) })
    case 3: .token(word(Self.tokenFirst, Self.tokenRest))
    case 4: .bytes((0..<random.size(upTo: 40) - 1).map { _ in UInt8.random(in: 0...255, using: &random) })
    case 5: .boolean(random.chance(50))
    case 6: .date(number())
    default: .displayString(String(String.UnicodeScalarView((0..<random.size(upTo: 20) - 1).map { _ in scalar() })))
    }
  }

  /// Mostly around critical values: zero, the limits, and numbers of digits.
  private mutating func number() -> Int64 {
    let largest = BareItem.largestInteger
    switch Int.random(in: 0..<4, using: &random) {
    case 0: return Int64.random(in: -2...2, using: &random)
    case 1: return largest - Int64.random(in: 0...2, using: &random)
    case 2: return Int64.random(in: 0...2, using: &random) - largest
    default:
      return Int64.random(in: -largest...largest, using: &random) >> Int64.random(in: 0...49, using: &random)
    }
  }

  private mutating func scalar() -> Unicode.Scalar {
    // The surrogates among them are not scalars, and become U+FFFD.
    random.chance(50)
      ? Unicode.Scalar(UInt8.random(in: 0...127, using: &random))
      : Unicode.Scalar(UInt32.random(in: 0...0x10FFFF, using: &random)) ?? "\u{FFFD}"
  }

  private mutating func key() -> String { word(Self.keyFirst, Self.keyRest) }

  private mutating func parameters() -> [Parameter] {
    var keys = Set<String>()
    return (0..<Int.random(in: 0...3, using: &random)).compactMap { _ in
      let key = key()
      return keys.insert(key).inserted ? Parameter(key: key, value: bareItem()) : nil
    }
  }

  private mutating func word(_ first: [UInt8], _ rest: [UInt8]) -> String {
    var octets = [pick(first)]
    for _ in 0..<random.size(upTo: 12) - 1 { octets.append(pick(rest)) }
    return String(decoding: octets, as: UTF8.self)
  }

  private mutating func text(_ octet: (inout SplitMix64) -> UInt8) -> String {
    String(decoding: (0..<random.size(upTo: 40) - 1).map { _ in octet(&random) }, as: UTF8.self)
  }

  package mutating func pick<Element>(_ list: [Element]) -> Element {
    list[Int.random(in: 0..<list.count, using: &random)]
  }

  // MARK: Arbitrary texts

  /// The elements of structured fields, and their limits.
  private static let fragments: [[UInt8]] = [
    "\"", ":", "?", "?1", "?0", "@", "%\"", "%", "(", ")", ";", "=", ",", ", ", " ", "\t", "-", ".", "0",
    "999999999999999",
    "1000000000000000", "0.001", "*", "a", "A", "\\", "\\\"", "%c3%a9", "%C3", ":aGk=:", "a=1", ";a", "()",
    "max-size=1",
    "\u{0}", "\r\n", "\u{7f}", "\u{e9}",
  ].map { Array($0.utf8) }

  /// Octets composed of the grammar's elements, or of random ones.
  package mutating func garbage() -> [UInt8] {
    if random.chance(20) {
      return (0..<random.size(upTo: 60)).map { _ in UInt8.random(in: 0...255, using: &random) }
    }
    return (0..<random.size(upTo: 12)).flatMap { _ in pick(Self.fragments) }
  }

  /// `text` with up to four places changed.
  package mutating func mutated(_ text: String) -> [UInt8] {
    var octets = Array(text.utf8)
    for _ in 0..<Int.random(in: 1...4, using: &random) {
      let place = Int.random(in: 0...octets.count, using: &random)
      let end = min(octets.count, place + Int.random(in: 0...4, using: &random))
      switch Int.random(in: 0..<5, using: &random) {
      case 0: octets.replaceSubrange(place..<end, with: [UInt8.random(in: 0...255, using: &random)])
      case 1: octets.removeSubrange(place..<end)
      case 2: octets.insert(contentsOf: pick(Self.fragments), at: place)
      case 3: octets.insert(contentsOf: octets[place..<end], at: place)
      default: if place < octets.count { octets[place] ^= 1 << UInt8.random(in: 0..<8, using: &random) }
      }
    }
    return octets
  }
}
