// Tests the file name that follows from a URL. A hostile server must not harm a user who has not chosen a name.

import NetworkTesting
import Testing

@testable import sluice

@Suite("The name of a download")
struct DownloadNameTests {
  @Test(
    "the last part of a URL's path is the name",
    arguments: [
      ("film.mkv", "film.mkv"), ("a%20b.txt", "a b.txt"), ("%C3%BC.txt", "ü.txt"), ("x?y=/z", "x"), ("x#/y", "x"),
      ("a-rf", "a-rf"), ("a.", "a."), ("a..b", "a..b"), ("%E6%97%A5%E6%9C%AC", "日本"), ("sluice", "sluice"),
      ("a%3Bb", "a;b"), ("a'b", "a'b"), (String(repeating: "x", count: 240), String(repeating: "x", count: 240)),
    ])
  func good(_ part: String, _ name: String) throws {
    for start in ["http://h/", "https://user:x@h:8/a/b/", "h/"] {
      #expect(DownloadTarget.name(in: start + part) == name, "\(start)\(part)")
    }
    #expect(try DownloadTarget(output: "/tmp", url: "http://h/\(part)").path == "/tmp/\(name)")
  }

  @Test(
    "a name that is an option, hidden, a path, a record or deceptive is refused, and the error requests -o",
    arguments: [
      "-rf", "--force", "%2Drf", "-", ".", "..", "%2e%2e", ".bashrc", "%2Ebashrc", "", "a%2Fb", "..%2fb", "a%00b",
      "%0A",
      "a%1B%5B2J", "a%7F", "a%C2%9Bb", "a%E2%80%AEcod.exe", "a%E2%80%8Bb", "a%E2%80%A8b", "%EF%BB%BFa", "%FF", "a%C3",
      "a%", "a%2", "a%zz", "~", "~root", "%20a", "a%20", "a%C2%A0", "film.mkv.sluice", "film.SLUICE", "%EE%80%80",
      String(repeating: "x", count: 241), String(repeating: "%C3%BC", count: 121),
    ])
  func hostile(_ part: String) throws {
    for directory in [nil, "/tmp", "/tmp/"] {
      do throws(CommandError) {
        let target = try DownloadTarget(output: directory, url: "http://user:SECRET@h/\(part)?sig=SECRET")
        Issue.record("\(part) is called \(target.path)")
      } catch {
        #expect(error.code == .usage && error.message.contains("--output FILE"), "\(error)")
        #expect(!error.message.contains("SECRET"), "\(error)")
      }
    }
    // A user who names the file explicitly may use any name.
    #expect(try DownloadTarget(output: "-rf", url: "http://h/\(part)").path == "-rf")
  }
}
