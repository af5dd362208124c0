// Tests the line that changes in place, on narrow terminals and on terminals with few abilities.

import AudioCapture
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import TestRigs
import Testing

@testable import LiveStreaming
@testable import sluice

@Suite("The status line")
struct StatusLineTests {
  private func progress(_ random: inout SplitMix64) -> StreamProgress {
    func number() -> UInt64 { random.next() >> UInt64.random(in: 0...63, using: &random) }
    return StreamProgress(
      elapsed: .seconds(Int64.random(in: 0...10_000_000, using: &random)), captured: number(), sent: number(),
      acknowledged: number(), lost: random.chance(50) ? 0 : number(),
      buffered: Int.random(in: 0...1 << 40, using: &random), capacity: 1 << 40,
      outageCount: Int.random(in: 0...100_000, using: &random), isConnected: random.chance(50))
  }

  private func levels(_ random: inout SplitMix64) -> [ChannelLevel] {
    (0..<Int.random(in: 0...8, using: &random)).map { _ in
      ChannelLevel(
        peak: Double.random(in: -200...6, using: &random),
        rms: random.chance(20) ? -.infinity : Double.random(in: -90...0, using: &random))
    }
  }

  @Test("it never reaches the last column, whatever its contents", arguments: Seed.several(10))
  func width(_ seed: Seed) {
    var random = seed.generator
    for width in 0..<200 {
      let line = StatusLine.text(progress(&random), levels: levels(&random), width: width)
      #expect(line.count < max(1, width) && !line.contains { $0.isNewline })
      if width >= 180 { #expect(line.contains("captured") && line.contains("sent") && line.contains("outages")) }
    }
  }

  @Test(
    "60 columns have the acknowledged bytes, the outages, the losses and the time left in the buffer",
    arguments: Seed.several(10))
  func narrow(_ seed: Seed) {
    var random = seed.generator
    for _ in 0..<200 {
      var progress = progress(&random)
      progress.outageCount %= 1000
      let line = StatusLine.text(progress, levels: levels(&random), width: 60)
      #expect(line.contains("\(Units.text(bytes: progress.acknowledged))"), "\(line)")
      #expect(line.contains("outages \(progress.outageCount)") && line.contains("buffer "), "\(line)")
      #expect(line.contains("lost ") == (progress.lost > 0), "\(line)")
    }
    let calm = StreamProgress(
      elapsed: .seconds(60), captured: 5_760_000, sent: 5_760_000, acknowledged: 5_750_000, lost: 0, buffered: 10_000,
      capacity: 172_810_000, outageCount: 2, isConnected: true)
    #expect(
      StatusLine.text(calm, levels: [], width: 60) == "acknowledged 5.75 MB  buffer lasts 30 min more  outages 2")
  }

  @Test("the time left in the buffer depends on the rate so far, and no figure is too large or too small for it")
  func bufferTime() {
    func left(_ elapsed: Int64, _ captured: UInt64, _ buffered: Int, _ capacity: Int) -> Duration? {
      StreamProgress(
        elapsed: .seconds(elapsed), captured: captured, sent: 0, acknowledged: 0, lost: 0, buffered: buffered,
        capacity: capacity, outageCount: 0, isConnected: true
      ).bufferTimeLeft
    }
    #expect(left(10, 1000, 100, 1100) == .seconds(10))
    #expect(left(10, 1000, 1200, 1100) == .zero)
    #expect(left(0, 1000, 0, 1100) == nil && left(10, 0, 0, 1100) == nil)
    #expect(left(.max, 1, 0, .max) == .seconds(300_000_000_000))
    #expect(left(1, .max, 0, 1) == .zero)
    #expect(
      [0, 99, 100, 5999, 6000, 172_799, 172_800, 86_399_999, 86_400_000].map { Units.words(.seconds($0)) }
        == ["0 s", "99 s", "1 min", "99 min", "1 h", "47 h", "2 d", "999 d", "years"])
  }
}

@Suite("Capabilities of a terminal")
struct TerminalTextTests {
  @Test(
    "the first locale variable that is set determines Unicode, and TERM the status line",
    arguments: [
      (["LANG": "de_DE.UTF-8", "TERM": "xterm"], true, true), (["LANG": "C.utf8", "TERM": "dumb"], true, false),
      (["LC_ALL": "C", "LANG": "de_DE.UTF-8", "TERM": "linux"], false, true),
      (["LC_ALL": "", "LC_CTYPE": "en_US.UTF-8", "LANG": "C"], true, false), ([:], false, false),
      (["LANG": "de_DE.ISO-8859-1", "TERM": "vt100"], false, true),
    ])
  func environment(_ variables: [String: String], isUnicode: Bool, canRedraw: Bool) {
    let text = TerminalText { variables[$0] }
    #expect(text.isUnicode == isUnicode && text.canRedraw == canRedraw)
  }

  @Test("without Unicode, each character becomes one of ASCII, so the widths stay")
  func ascii() {
    let plain = TerminalText { _ in nil }
    #expect(plain.shown("8000–192000 Hz ▕▁█▏ “größe” …") == "8000-192000 Hz |.#| \"gr??e\" ~")
    let line = StatusLine.meter([ChannelLevel(peak: -3, rms: -12)])
    #expect(plain.shown(line).count == line.count && plain.shown(line).utf8.allSatisfy { $0 < 0x80 })
    #expect(TerminalText { ["LANG": "C.UTF-8"][$0] }.shown(line) == line)
  }

  /// The output of the command to a terminal in its first seconds, until a given text appears.
  private func output(_ environment: [String], columns: UInt16, until done: @escaping (String) -> Bool) throws -> String
  {
    let server = try StreamServer()
    let terminal = try Terminal()
    var size = winsize(ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0)
    _ = ioctl(terminal.inner, UInt(TIOCSWINSZ), &size)
    let microphone = TestMicrophone()
    let command = try SpawnedCommand(
      ["mic", "\(server.url)/k", "-D", microphone.name()], [nil, terminal.inner, terminal.inner],
      environment: environment)
    var text: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 65_536)
    var isWider = false
    while !done(String(decoding: text, as: UTF8.self)) {
      guard waitUntilReadable(terminal.outer, limit: .seconds(30)) else { throw TestFailure("nothing more came") }
      let count = read(terminal.outer, &buffer, buffer.count)
      guard count > 0 else { break }
      text += buffer[..<count]
      // The next status line adapts to a resized terminal.
      if !isWider, String(decoding: text, as: UTF8.self).contains("outages") {
        isWider = true
        size.ws_col = columns * 2
        _ = ioctl(terminal.inner, UInt(TIOCSWINSZ), &size)
      }
    }
    command.signal(SIGTERM)
    #expect(try command.wait() == 0)
    return String(decoding: text, as: UTF8.self)
  }

  @Test("a dumb terminal receives only lines, another one a status line of its width, in its own characters")
  func terminals() throws {
    let dumb = try output(["TERM=dumb", "LC_ALL=C"], columns: 60) { $0.contains("streaming to") }
    #expect(!dumb.contains("\u{1B}") && dumb.utf8.allSatisfy { $0 < 0x80 })
    let ascii = try output(["TERM=xterm", "LC_ALL=C"], columns: 60) { $0.contains("captured") && $0.contains("sent") }
    #expect(ascii.utf8.allSatisfy { $0 < 0x80 } && ascii.contains("\u{1B}[K"))
    let unicode = try output(["TERM=xterm", "LC_ALL=C.UTF-8"], columns: 60) { $0.contains("▏") }
    let lines = unicode.split { $0 == "\r" || $0 == "\n" || $0 == "\r\n" }.map { $0.replacing("\u{1B}[K", with: "") }
    #expect(lines.allSatisfy { !$0.contains("outages") || $0.count < 120 })
  }
}
