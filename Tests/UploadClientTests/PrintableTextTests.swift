import PropertyTesting
import Testing

@testable import UploadClient

@Suite("Printable text from the network")
struct PrintableTextTests {
  @Test(
    "terminal control sequences and direction changes are removed, and nothing else is changed",
    arguments: Seed.several(5))
  func anything(_ seed: Seed) {
    var random = seed.generator
    for _ in 0..<2000 {
      var scalars = String.UnicodeScalarView()
      for _ in 0..<random.size(upTo: 40) {
        let value = random.chance(50) ? UInt32(random.size(upTo: 0x100)) : UInt32(random.size(upTo: 0x2100))
        if let scalar = Unicode.Scalar(value), scalar != "@" { scalars.append(scalar) }
      }
      let text = String(scalars)
      let shown = printable(text)
      #expect(
        !shown.unicodeScalars.contains {
          $0.properties.generalCategory == .control || $0.properties.generalCategory == .lineSeparator
            || $0.properties.isBidiControl
        })
      #expect(printable(shown) == shown, "once is enough")
      if !text.unicodeScalars.contains(where: {
        $0.properties.generalCategory == .control || $0.value > 0x600 || $0.value == 0x61C
      }) {
        #expect(shown == text)
      }
    }
  }

  @Test("each character that ends a line or changes the direction becomes visible, and its neighbours stay unchanged")
  func boundaries() {
    for (range, isVisible) in [
      (0x2027...0x2027, true), (0x2028...0x202E, false), (0x202F...0x202F, true), (0x2065...0x2065, true),
      (0x2066...0x2069, false), (0x206A...0x206A, true), (0x200D...0x200D, true), (0x200E...0x200F, false),
      (0x2010...0x2010, true), (0x61B...0x61B, true), (0x61C...0x61C, false), (0x61D...0x61D, true),
      (0x00...0x1F, false), (0x20...0x20, true), (0x7E...0x7E, true), (0x7F...0x9F, false), (0xA0...0xA0, true),
    ] as [(ClosedRange<UInt32>, Bool)] {
      for scalar in range.compactMap(Unicode.Scalar.init) {
        #expect((printable("a\(scalar)b") == "a\(scalar)b") == isVisible, "\(String(scalar.value, radix: 16))")
      }
    }
  }

  @Test("of a long text, only the beginning is shown")
  func beginning() {
    for count in 0...3 {
      #expect(excerpt(String(repeating: "\u{FC}", count: count), limit: 3) == String(repeating: "\u{FC}", count: count))
    }
    #expect(excerpt("abcd", limit: 3) == "abc…")
    let long = String(repeating: "x", count: 201)
    #expect(excerpt(String(long.dropLast())) == String(long.dropLast()))
    #expect(excerpt(long) == String(repeating: "x", count: 200) + "…")
  }

  @Test("an escape sequence becomes visible")
  func escape() {
    #expect(printable("a\u{1B}]0;owned\u{7}b\r\n") == "a\\u{1b}]0;owned\\u{7}b\\u{d}\\u{a}")
    #expect(UploadError(.other, "\u{1B}[2J").description == "\\u{1b}[2J")
    #expect(printable("größe 🎙") == "größe 🎙")
  }

  @Test(
    "user and password of a URL are removed at any position",
    arguments: [
      ("http://me:secret@proxy:3128", "http://proxy:3128"),
      (
        "Unsupported proxy syntax in 'nonsense://me:se cret@host:x y': bad",
        "Unsupported proxy syntax in 'nonsense://host:x y': bad"
      ),
      ("Unsupported proxy syntax in 'me:secret@host'", "Unsupported proxy syntax in 'host'"),
      ("a://u:secret@b and c://v:secret@d/e@f", "a://b and c://d/e@f"),
      ("http://h/path@2:x", "http://h/path@2:x"),
      ("write to root@example.com: thanks", "write to root@example.com: thanks"),
      ("http://me:se@cret@h", "http://h"), ("@", "@"), ("://@", "://"),
    ])
  func passwords(_ text: String, _ shown: String) {
    #expect(printable(text) == shown)
  }

  @Test("no error contains a proxy's password, for any fault of the proxy")
  func proxy() throws {
    try withSession { session throws in
      for proxy in [
        "nonsense://me:secret@host", "http://me:secret@127.0.0.1:9", "http://me:secret@h:x", "me:secret@[x",
      ] {
        var request = UploadRequest(url: "http://h/")
        request.proxy = proxy
        let error = try RunningUpload(session, request).failure()
        #expect(!"\(error)".contains("secret"), "\(error)")
      }
    }
  }

  @Test("limits below a millisecond become one, and limits above libcurl's maximum become that")
  func milliseconds() {
    #expect(CurlOptions.milliseconds(.microseconds(500)) == 1 && CurlOptions.milliseconds(.zero) == 1)
    #expect(CurlOptions.milliseconds(.seconds(2)) == 2000)
    #expect(CurlOptions.milliseconds(.seconds(Int64.max)) == Int(Int32.max))
  }
}
