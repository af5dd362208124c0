// Headless Chromium, for checks that need a browser: the rendered page, and its errors.

import EventLoops
import NetworkTesting

/// Runs Chromium once per call. `timeout` kills it if it does not end by itself.
struct Browser {
  private let directory: TemporaryDirectory

  init() throws { directory = try TemporaryDirectory() }

  struct Answer {
    /// The document after everything was loaded.
    let document: String
    /// The errors of the page and of the browser.
    let complaints: [String]
  }

  /// Loads a page, and returns the resulting document.
  func document(_ html: String, more: [String] = []) throws -> Answer {
    let process = try run(html, ["--dump-dom"] + more)
    // A line of the console is `[…:CONSOLE:line] "text", source: …`.
    return Answer(
      document: process.output.joined(separator: "\n"), complaints: process.errors.filter { $0.contains("CONSOLE") })
  }

  /// A picture of the page in a window of this size, as a PNG.
  func screenshot(_ html: String, width: Int, height: Int, more: [String] = []) throws -> [UInt8] {
    let picture = "\(directory.path)/page.png"
    _ = try run(html, ["--screenshot=\(picture)", "--hide-scrollbars", "--window-size=\(width),\(height)"] + more)
    return try directory.contents("page.png")
  }

  private func run(_ html: String, _ options: [String]) throws -> TestProcess {
    let page = try directory.write("page.html", html)
    let process = try TestProcess(
      "timeout",
      [
        "-s", "KILL", "120", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--enable-logging=stderr", "--user-data-dir=\(directory.path)/profile",
      ] + options + ["file://\(page)"])
    let status = try process.wait()
    guard status == 0 else {
      throw TestFailure(
        "chromium (Debian package chromium) ended with \(status)\n\(process.errors.suffix(20).joined(separator: "\n"))")
    }
    return process
  }
}

/// The data in the head of a PNG (ISO 15948), and its compressed size.
struct Picture {
  let width: Int
  let height: Int
  /// The compressed size of its pixels, which is small for a nearly empty picture.
  let size: Int

  init(png bytes: [UInt8]) throws {
    func number(_ at: Int) -> Int { bytes[at..<at + 4].reduce(0) { $0 << 8 | Int($1) } }
    guard bytes.count > 33, bytes.starts(with: [0x89, 0x50, 0x4E, 0x47, 0x0D, 0x0A, 0x1A, 0x0A]) else {
      throw TestFailure("no PNG: \(bytes.prefix(16))")
    }
    (width, height) = (number(16), number(20))
    var (position, total) = (8, 0)
    while position + 8 <= bytes.count {
      let length = number(position)
      if bytes[position + 4..<position + 8].elementsEqual("IDAT".utf8) { total += length }
      position += length + 12
    }
    size = total
  }
}
