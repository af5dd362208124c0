// Sends the test vectors of the article "Receive uploads from iPhones" to a server.

import NetworkTesting
import Testing
import UploadServer

@Suite("Test vectors of iPhones", .serialized)
struct PhoneVectorTests {
  @Test("the article has a vector for each version of iPhones")
  func versions() throws {
    let vectors = try PhoneVector.all()
    #expect(vectors.map(\.title) == ["iOS 17", "iOS 18.0", "iOS 18.1", "iOS 26"])
    let versions = vectors.map { vector in
      Set(vector.lines.compactMap { $0.split(separator: "Upload-Draft-Interop-Version: ").dropFirst().first })
    }
    #expect(versions == [["3"], ["5"], ["6"], ["8"]])
  }

  @Test("the server's response to each vector is the article's, and the file is stored")
  func answers() throws {
    for vector in try PhoneVector.all() {
      let test = try TestServer()
      let missing = try vector.play(test)
      #expect(missing.isEmpty, "\(vector.title): \(missing)")
      #expect(try test.directory.text(test.onlyFile) == "0123456789", "\(vector.title)")
    }
  }
}

/// An exchange as lines: `> ` for what a phone sends, `< ` for the required answer, `* ` for notes.
struct PhoneVector {
  let title: String
  let lines: [String]

  /// The vectors of the article, in its order.
  static func all() throws -> [PhoneVector] {
    let file = #filePath
    let root = file.prefix(upTo: file.firstRange(of: "/Tests/")?.lowerBound ?? file.endIndex)
    let path = "\(root)/docs/Sluice.docc/ReceiveUploadsFromIPhones.md"
    let text = String(decoding: try fileContents(path), as: UTF8.self)
    return text.split(separator: "```text\n* ").dropFirst().map { part in
      let lines = part[..<(part.firstRange(of: "\n```")?.lowerBound ?? part.endIndex)].split(separator: "\n")
      return PhoneVector(title: String(lines.first ?? ""), lines: lines.dropFirst().map(String.init))
    }
  }

  /// Sends the phone's lines, and returns the lines that are missing in the server's answers.
  func play(_ test: TestServer) throws -> [String] {
    var client = try test.connect()
    var answer: RawClient.Answer?
    var location = ""
    var isInHead = false
    var method = ""
    var missing: [String] = []
    for line in lines {
      let text = line.dropFirst(2).replacing("LOCATION", with: location.isEmpty ? "LOCATION" : location)
      switch line.prefix(2) {
      case "> ", ">":
        if text.hasSuffix(" HTTP/1.1") {
          isInHead = true
          method = String(text.prefix { $0 != " " })
        }
        try client.send(isInHead ? "\(text)\r\n" : String(text))
        if text.isEmpty { isInHead = false }
      case "* ":
        try waitUntil("all has arrived") { client.unacknowledged == 0 }
        client.shutdownWriting()
        _ = try test.events.wait(.interrupted)
        client = try test.connect()
      default:
        if text.hasPrefix("HTTP/1.1 ") {
          let status = Int(text.dropFirst(9).prefix(3)) ?? 0
          repeat {
            answer = try client.answer(withBody: method != "HEAD")
          } while status >= 200 && (answer?.status ?? 0) < 200
          if answer?.status != status { missing.append(line) }
          continue
        }
        let name = String(text.prefix { $0 != ":" })
        let value = String(text.dropFirst(name.utf8.count + 2))
        if value == "LOCATION" {
          location = answer?["Location"] ?? ""
          if location.isEmpty { missing.append(line) }
        } else if answer?[name] != value {
          missing.append(line)
        }
      }
    }
    return missing
  }
}
