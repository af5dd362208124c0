// Digests in fields (RFC 9530), and the fields of a message.

import PropertyTesting
import Testing

@testable import HTTPMessages

@Suite("Digest fields, and fields found by name") struct DigestFieldTests {
  @Test("the example of RFC 9530, appendix B.1, is read and written exactly")
  func example() throws {
    let text = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
    let field = try #require(DigestField(parsing: text))
    #expect(field.digests.map(\.algorithm) == ["sha-256"])
    #expect(field["sha-256"]?.count == 32 && field["sha-256"]?.first == 0x44 && field["sha-256"]?.last == 0x38)
    #expect(field["sha-512"] == nil)
    #expect(field.value == text)
  }

  @Test("several algorithms keep their order; a value that is not a Dictionary of byte sequences is ignored")
  func several() throws {
    let field = try #require(DigestField(parsing: "sha-256=:AQ==:, sha-512=:Ag==:;a=1, md5=::"))
    #expect(field == DigestField([("sha-256", [1]), ("sha-512", [2]), ("md5", [])]))
    #expect(field.value == "sha-256=:AQ==:, sha-512=:Ag==:, md5=::")
    for text in [
      "sha-256", "sha-256=AQ==", "sha-256=\"AQ==\"", "sha-256=1", "sha-256=(:AQ==:)", "SHA-256=:AQ==:", ":AQ==:",
      "sha-256=:AQ==:,", "sha-256=:AQ==:, sha-512=1", "sha-256=:A_==:", "sha-256=:AQ==",
    ] { #expect(DigestField(parsing: text) == nil, "\(text)") }
    // RFC 9651, section 4.2.2: the later of two values counts.
    #expect(DigestField(parsing: "sha-256=:AQ==:, sha-256=:Ag==:")?["sha-256"] == [2])
  }

  @Test("Want-Repr-Digest lists algorithms by preference, and 0 excludes one (RFC 9530, section 4)")
  func wanted() {
    #expect(DigestField.wanted(parsing: "sha-512=3, sha-256=10, unixsum=0") == ["sha-256", "sha-512"])
    #expect(DigestField.wanted(parsing: "a=5, b=5, c=6, d=5") == ["c", "a", "b", "d"])
    #expect(DigestField.wanted(parsing: "") == [])
    for text in ["sha-256=11", "sha-256=-1", "sha-256=1.0", "sha-256", "sha-256=?1", "sha-256=(1)", "sha-256=1,"] {
      #expect(DigestField.wanted(parsing: text) == [], "\(text)")
    }
  }

  @Test("base64 is written and read for every length, and similar invalid text is refused (RFC 4648)")
  func base64() {
    // RFC 4648, section 10.
    for (plain, text) in [
      ("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE="),
      ("foobar", "Zm9vYmFy"),
    ] {
      #expect(Base64.encode(Array(plain.utf8)) == text)
      #expect(Base64.decode(Array(text.utf8)[...]) == Array(plain.utf8))
      // Without padding, which a parser should accept (RFC 9651, section 4.2.7).
      #expect(Base64.decode(Array(text.utf8).filter { $0 != UInt8(ascii: "=") }[...]) == Array(plain.utf8))
    }
    for text in [
      "=", "==", "====", "Z", "Z===", "Zg=", "Zm8==", "Zm9v=", "Zm9v==", "Zm9v====", "Zg==Zg==", "Z g=", "Zm-_",
      "Zm9vY",
    ] {
      #expect(Base64.decode(Array(text.utf8)[...]) == nil, "\(text)")
    }
  }

  @Test("a field is found in any case, and equal names are joined by commas (RFC 9110, section 5)")
  func fieldLines() {
    var fields: HeaderFields = ["Upload-Offset": "1", "X": "a"]
    fields.append("x", "b")
    #expect(fields["X"] == "a, b" && fields["x"] == "a, b" && fields["UPLOAD-OFFSET"] == "1")
    #expect(fields["Y"] == nil && !fields.contains("Upload") && fields.contains("upload-offset"))
    #expect(fields.without(["x", "Z"]).all.map(\.name) == ["upload-offset"])
    #expect(fields.without([]) == fields)
    // The Kelvin sign, whose lower case in Unicode is a k, and an e with an acute accent as two code points.
    #expect((["X-\u{212A}": "1"] as HeaderFields)["X-k"] == nil)
    #expect((["\u{65}\u{301}": "1"] as HeaderFields)["\u{e9}"] == nil)
  }
}
