// The sidecar's text: written, read again, and read when it is damaged.

import PropertyTesting
import Recordings
import Testing

@Suite("Sidecars")
struct SidecarTests {
  /// Any valid sidecar.
  private static func random(_ generator: inout some RandomNumberGenerator) -> RecordingSidecar {
    func text() -> String {
      let characters: [Character] = ["a", "\"", "\\", "\u{7}", "é", "🎙", "\n", "0", "\u{202E}"]
      return String((0..<Int.random(in: 0..<12, using: &generator)).map { _ in characters.randomElement()! })
    }
    func maybe<Value>(_ value: @autoclosure () -> Value) -> Value? { Bool.random(using: &generator) ? value() : nil }
    func count() -> UInt64 { [0, 1, 1 << 32, UInt64(Int64.max)].randomElement(using: &generator)! }
    var sidecar = RecordingSidecar(file: "k" + text().filter { $0 != "/" } + ".wav")
    sidecar.stream = maybe(text())
    sidecar.part = Int.random(in: 1...9, using: &generator)
    sidecar.offset = count()
    sidecar.state = Bool.random(using: &generator) ? .complete : .interrupted
    sidecar.isLive = Bool.random(using: &generator)
    sidecar.started = maybe(text())
    sidecar.startedBySender = sidecar.started != nil && Bool.random(using: &generator)
    sidecar.ended = maybe(text())
    sidecar.received = maybe(.init(bytes: count(), sha256: maybe(text())))
    sidecar.stored = maybe(.init(bytes: count(), sha256: maybe(text())))
    sidecar.isDamaged = Bool.random(using: &generator)
    sidecar.receivedHead = (0..<Int.random(in: 0..<9, using: &generator)).map { _ in .random(in: 0...255) }
    sidecar.missing = count()
    sidecar.gaps = (0..<Int.random(in: 0..<3, using: &generator)).map { _ in
      .init(offset: count(), length: count(), cause: text())
    }
    sidecar.clockSteps = (0..<Int.random(in: 0..<3, using: &generator)).map { _ in
      .init(offset: count(), milliseconds: [.min, -1, 0, .max].randomElement()!)
    }
    sidecar.device = maybe(text())
    sidecar.format = maybe(text())
    sidecar.rate = maybe(Int.random(in: 0...99, using: &generator))
    sidecar.channels = maybe(Int.random(in: 0...99, using: &generator))
    sidecar.software = maybe(text())
    sidecar.server = maybe(text())
    return sidecar
  }

  @Test("a sidecar with only its file's name belongs to the first part, with no other data")
  func least() throws {
    let text = #"{"version": \#(RecordingSidecar.version), "file": "a.wav"}"#
    #expect(try RecordingSidecar(parsing: Array(text.utf8)) == RecordingSidecar(file: "a.wav"))
  }

  @Test("a written sidecar is read again unchanged, for any values")
  func roundTrip() throws {
    var generator = SystemRandomNumberGenerator()
    for _ in 0..<2000 {
      let sidecar = Self.random(&generator)
      #expect(try RecordingSidecar(parsing: Array(sidecar.text.utf8)) == sidecar, "\(sidecar.text)")
    }
  }

  @Test("a sidecar that is truncated or changed anywhere is read or refused, and never ends the process")
  func damaged() throws {
    var generator = SystemRandomNumberGenerator()
    for _ in 0..<300 {
      let text = Array(Self.random(&generator).text.utf8)
      for cut in stride(from: 0, to: text.count - 1, by: 7) {
        // Without its last brace it is not an object.
        #expect(throws: SidecarError.self) { try RecordingSidecar(parsing: Array(text[..<cut])) }
      }
      for _ in 0..<20 {
        var changed = text
        changed[.random(in: 0..<changed.count)] = .random(in: 0...255)
        _ = try? RecordingSidecar(parsing: changed)
      }
    }
  }

  @Test(
    "a sidecar with a file elsewhere, or with impossible values, is refused",
    arguments: [
      "[]", "{}", "{\"version\": 1}", "{\"version\": 2, \"file\": \"a.wav\"}",
      "{\"version\": 1, \"file\": \"../a.wav\"}", "{\"version\": 1, \"file\": \".a.wav\"}",
      "{\"version\": 1, \"file\": \"a.wav\", \"stored\": {\"bytes\": -1}}",
      "{\"version\": 1, \"file\": \"a.wav\", \"stored\": {}}", "{\"version\": 1, \"file\": 5}",
      "{\"version\": 1, \"file\": \"a.wav\", \"gaps\": [1]}",
      "{\"version\": 1, \"file\": \"a.wav\", \"received_head\": \"0g\"}",
      "{\"version\": 1, \"file\": \"a.wav\", \"file\": \"b.wav\"}",
    ])
  func refused(_ text: String) {
    #expect(throws: SidecarError.self) { try RecordingSidecar(parsing: Array(text.utf8)) }
  }
}
