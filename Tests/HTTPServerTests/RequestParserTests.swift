import Glibc
import HTTPServer
import PropertyTesting
import Testing

@Suite("The request parser")
struct RequestParserTests {
  @Test("every request of the table has the expected result", arguments: RequestCase.all)
  func table(_ row: RequestCase) {
    let traffic = ParsedTraffic(row.octets)
    #expect(traffic.verdict == row.verdict, "\(traffic)")
  }

  @Test("a length of nearly 63 bits is valid")
  func longestBody() {
    let raw = "PUT /t HTTP/1.1\r\nHost: h\r\nContent-Length: 9223372036854775799\r\n\r\n"
    #expect(ParsedTraffic(Array(raw.utf8)).heads.map(\.framing) == [.sized(9_223_372_036_854_775_799)])
  }

  @Test("a request has the same result for every split", arguments: RequestCase.all)
  func split(_ row: RequestCase) {
    let octets = row.octets
    let whole = ParsedTraffic(octets)
    // The long rows are long in one place only, where all bytes are alike.
    let step = octets.count > 2000 ? 97 : 1
    for cut in stride(from: 0, through: octets.count, by: step) {
      #expect(ParsedTraffic(octets, cuts: [cut]) == whole, "split at \(cut)")
    }
    #expect(ParsedTraffic(octets, cuts: Array(0...octets.count)) == whole, "split everywhere")
  }

  @Test("the files of the corpus have the same result for every split")
  func corpus() throws {
    let files = try Corpus.files()
    #expect(files.count >= 10)
    for (name, octets) in files {
      let whole = ParsedTraffic(octets)
      for cut in 0...octets.count {
        #expect(ParsedTraffic(octets, cuts: [cut]) == whole, "\(name) split at \(cut)")
      }
    }
  }

  @Test("pipelined requests are parsed one after another")
  func pipelined() {
    let raw =
      "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab"
      + "PUT /b?c=d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ncd\r\n1\r\ne\r\n0\r\nX: y\r\n\r\n"
      + "GET / HTTP/1.1\r\nHost: h\r\nConnection: Close\r\n\r\n"
    let traffic = ParsedTraffic(Array(raw.utf8))
    #expect(traffic.heads.map(\.method) == ["POST", "PUT", "GET"])
    #expect(traffic.heads.map(\.target.path) == ["/a", "/b", "/"])
    #expect(traffic.heads.map(\.target.query) == [nil, "c=d", nil])
    #expect(traffic.heads.map(\.framing) == [.sized(2), .chunked, .absent])
    #expect(traffic.heads.map(\.keepsAlive) == [true, true, false])
    #expect(traffic.bodies == ["ab", "cde"])
    #expect(traffic.completed == 3)
  }

  @Test("a request's names are found in any case, and keep their spelling")
  func spelling() {
    let request = "GET / HTTP/1.1\r\nhOST: h\r\nX-API-Key: k\r\ncontent-LENGTH: 0\r\nCONNECTION: CLOSE\r\n\r\n"
    let head = ParsedTraffic(Array(request.utf8)).heads.first
    #expect(head?.fields.all.map(\.rawName) == ["hOST", "X-API-Key", "content-LENGTH", "CONNECTION"])
    #expect(head?.fields["x-api-key"] == "k" && head?.fields.single("host") == "h")
    #expect(head?.framing == .sized(0) && head?.keepsAlive == false)
  }

  @Test("the limits apply to each request, not to the connection")
  func limitsPerRequest() {
    let one =
      "POST / HTTP/1.1\r\nHost: h\r\nA: \(String(repeating: "a", count: 5000))\r\nTransfer-Encoding: chunked\r\n\r\n"
    var limits = RequestParser.Limits()
    limits.body = 4
    let all = String(repeating: one + "4\r\nabcd\r\n0\r\n\r\n", count: 10)
    #expect(ParsedTraffic(Array(all.utf8), limits: limits).completed == 10)
  }

  @Test("nothing after a refused request is read")
  func afterRefusal() {
    let raw = "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"
    #expect(ParsedTraffic(Array(raw.utf8)).events == [.refused(RequestRefusal(400, "the request has no Host"))])
  }

  @Test("a body over the limit is refused: at once if its length is known, else at the first byte beyond it")
  func bodyLimit() {
    var limits = RequestParser.Limits()
    limits.body = 4
    let head = "PUT / HTTP/1.1\r\nHost: h\r\n"
    let sized = Array((head + "Content-Length: 5\r\n\r\nabcde").utf8)
    #expect(ParsedTraffic(sized, limits: limits).verdict == "413")
    #expect(ParsedTraffic(sized, limits: limits).bodies == [])
    let chunked = Array((head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n").utf8)
    let whole = ParsedTraffic(chunked, limits: limits)
    #expect(whole.bodies == ["abcd"])
    #expect(whole.refusal?.status == 413)
    for cut in 0...chunked.count { #expect(ParsedTraffic(chunked, cuts: [cut], limits: limits) == whole) }
    let fitting = Array((head + "Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n").utf8)
    #expect(ParsedTraffic(fitting, limits: limits).verdict == "accepted")
  }

  @Test("100-continue is expected only of a request with a body, and not in HTTP/1.0")
  func expectation() {
    func expects(_ raw: String) -> Bool? { ParsedTraffic(Array(raw.utf8)).heads.first?.expectsContinue }
    let fields = "Host: h\r\nExpect: 100-Continue\r\n"
    #expect(expects("PUT / HTTP/1.1\r\n\(fields)Content-Length: 1\r\n\r\n") == true)
    #expect(expects("PUT / HTTP/1.1\r\n\(fields)Content-Length: 0\r\n\r\n") == false)
    #expect(expects("PUT / HTTP/1.1\r\n\(fields)\r\n") == false)
    #expect(expects("PUT / HTTP/1.0\r\n\(fields)Content-Length: 1\r\n\r\n") == false)
  }

  @Test(
    "mutated requests never break the parser, and have the same result for every split", arguments: Seed.several(1))
  func mutations(_ seed: Seed) throws {
    let rounds = getenv("SLUICE_FUZZ_ROUNDS").flatMap { Int(String(cString: $0)) } ?? 20_000
    let seeds = try Corpus.files().map(\.octets) + RequestCase.all.map(\.octets).filter { $0.count < 2000 }
    var mutator = Mutator(seed)
    var accepted = 0
    for round in 0..<rounds {
      let octets = mutator.mutate(seeds)
      let cuts = mutator.cuts(octets.count)
      let whole = ParsedTraffic(octets)
      let pieces = ParsedTraffic(octets, cuts: cuts)
      #expect(pieces == whole, "seed \(seed), round \(round), cuts \(cuts)")
      #expect(whole.completed <= whole.heads.count)
      if whole.completed > 0 { accepted += 1 }
    }
    // A mutator that makes only invalid requests would show nothing.
    #expect(accepted > rounds / 20 && accepted < rounds)
  }
}
