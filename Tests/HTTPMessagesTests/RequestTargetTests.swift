// The four forms of a request target (RFC 9112, section 3.2), with each octet at each position.

import HTTPMessages
import Testing

@Suite("A request target")
struct RequestTargetTests {
  private func read(_ text: String, _ method: String = "GET") -> RequestTarget? {
    read(Array(text.utf8), method)
  }

  private func read(_ octets: [UInt8], _ method: String = "GET") -> RequestTarget? {
    do throws(RequestRefusal) {
      return try RequestTarget(octets.span, method: method)
    } catch {
      #expect(error.status == 400 && !error.reason.isEmpty)
      return nil
    }
  }

  @Test("each form is recognized, and valid only with its methods")
  func forms() {
    for method in ["GET", "OPTIONS", "PATCH"] {
      let asterisk = read("*", method)
      #expect((asterisk?.form == .asterisk) == (method == "OPTIONS"))
      #expect(asterisk?.path ?? "" == "" && asterisk?.query == nil)
      for other in ["**", "*/", "*a", "", "a", "host:1", "ftp://host/", "http:/host", "http://", "https:///a"] {
        #expect(read(other, method) == nil, "\(method) \(other)")
      }
      for (text, path, query) in [
        ("/", "/", nil), ("/a", "/a", nil), ("/a?", "/a", ""), ("/a?b", "/a", "b"), ("/?b?c/d", "/", "b?c/d"),
        ("//a/../b", "//a/../b", nil), ("/%20%7E", "/%20%7E", nil), ("/a?%20", "/a", "%20"),
      ] as [(String, String, String?)] {
        let origin = read(text, method)
        #expect(origin?.form == .origin && origin?.path == path && origin?.query == query)
        #expect(origin?.text == text)
        for authority in ["http://host", "HTTPS://[::1]:8080", "Http://a.b-c"] {
          let absolute = read(authority + text, method)
          #expect(absolute?.form == .absolute && absolute?.path == path && absolute?.query == query)
        }
      }
      // Without a path it is "/".
      for (text, query) in [("http://host", nil), ("http://host?b", "b")] as [(String, String?)] {
        let absolute = read(text, method)
        #expect(absolute?.path == "/" && absolute?.query == query)
      }
      // User information is invalid.
      #expect(read("http://user@host/", method) == nil && read("http://user:word@host/", method) == nil)
    }
    let authority = read("host:443", "CONNECT")
    #expect(authority?.form == .authority && authority?.path == "" && authority?.query == nil)
    #expect(read("host/path", "CONNECT") == nil && read("user@host", "CONNECT") == nil)
  }

  @Test("each octet is accepted or refused at every position", arguments: 0..<5)
  func octets(position: Int) {
    let allowed = Set(
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@/?".utf8)
    for octet in UInt8.min...UInt8.max {
      var target = Array("/xyzxy".utf8)
      target[1 + position] = octet
      #expect((read(target) != nil) == allowed.contains(octet), "\(octet) at \(position)")
      // Inside a percent-encoding.
      for digit in 1...2 {
        var encoded = Array("/a%2Fb?c%2Fd".utf8)
        encoded[(position < 3 ? 2 : 8) + digit] = octet
        let isDigit = "0123456789ABCDEFabcdef".utf8.contains(octet)
        #expect((read(encoded) != nil) == isDigit)
      }
    }
    for text in ["/%", "/%2", "/a?%", "/a?%F", "/%00", "/a?%00", "/%0", "/%2G"] { #expect(read(text) == nil) }
    #expect(read("/%01%10") != nil)
  }
}
