// Which requests count as name lookups that were left behind.

import CCurl
import EventLoops
import NetworkTesting
import Testing

@testable import UploadClient

@Suite("Name lookups of requests", .serialized)
struct LookupLimitTests {
  private func transfer(
    _ session: UploadSession, _ url: String, _ ends: EventLog<Result<UploadTask.Outcome, UploadError>>
  ) -> CurlTransfer {
    CurlTransfer(request: UploadRequest("GET", url), body: .none, loop: session.loop, session: session) { event in
      if case .finished(let result) = event { ends.append(result) }
    }
  }

  @Test("a lookup that has ended is not left behind, whether the connection succeeds or not")
  func ended() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    try withSession { session throws in
      #expect(try session.send(UploadRequest("GET", "http://localhost:\(server.port)")).status == 200)
      for host in ["localhost", "127.0.0.1"] {
        _ = try RunningRequest(session, UploadRequest("GET", "http://\(host):\(try freePort())")).failure()
      }
      #expect(try onThread(of: session) { session.lanes[0].lookups.abandoned } == 0)
    }
  }

  @Test("neither is one that begins only after the connection to a proxy")
  func proxy() throws {
    let proxy = try ScriptedServer { connection, _ in
      // SOCKS 4: version, command, port, address, and an empty user.
      _ = try connection.bytes(9)
      try connection.send([0, 90, 0, 0, 0, 0, 0, 0])
      _ = try connection.head()
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      var request = UploadRequest("GET", "http://localhost:9/")
      request.proxy = "socks4://127.0.0.1:\(proxy.port)"
      request.addressFamily = .ipv4
      #expect(try session.send(request).status == 200)
      #expect(try onThread(of: session) { session.lanes[0].lookups.abandoned } == 0)
    }
  }

  @Test("a request does not begin while too many lookups that were left behind still run")
  func limit() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    let session = try UploadSession()
    // As many threads as the limit, none of which is of a request that still runs.
    let multi = try CurlMulti(
      loop: session.loop, sockets: SocketTable(), lookups: NameLookups { NameLookups.limit },
      connections: .onePerUpload)
    defer {
      session.close()
      withExtendedLifetime(multi) {}
    }
    func run(_ url: String) throws -> Result<UploadTask.Outcome, UploadError> {
      let ends = try EventLog<Result<UploadTask.Outcome, UploadError>>()
      let transfer = transfer(session, url, ends)
      let isAccepted = session.execute { multi.start(transfer) }
      #expect(isAccepted)
      return try ends.wait("the end") { $0.first }
    }
    #expect(try run(server.url).get().response.status == 200)
    let abandoned = try onThread(of: session) { () -> Int in
      for _ in 0..<NameLookups.limit where multi.lookups.begin() { multi.lookups.abandon() }
      return multi.lookups.abandoned
    }
    #expect(abandoned == NameLookups.limit)
    let refused = try run("http://127.0.0.1:\(try freePort())")
    let reason = "the name servers do not answer: 4 earlier queries are still unanswered"
    #expect(refused == .failure(UploadError(.unknownHost, reason)))
    #expect(try onThread(of: session) { multi.lookups.abandoned } == NameLookups.limit)
  }

  @Test(
    "a request that ends during its lookup leaves it behind, unless the lookup itself has failed",
    arguments: [
      (CURLE_COULDNT_RESOLVE_HOST.rawValue, true, 0), (CURLE_COULDNT_RESOLVE_PROXY.rawValue, true, 0),
      (CURLE_OPERATION_TIMEDOUT.rawValue, true, 1), (CURLE_OPERATION_TIMEDOUT.rawValue, false, 0),
    ] as [(UInt32, Bool, Int)])
  func leftBehind(_ code: UInt32, _ looksUp: Bool, _ count: Int) throws {
    let session = try UploadSession()
    let multi = try CurlMulti(
      loop: session.loop, sockets: SocketTable(), lookups: NameLookups { 0 }, connections: .onePerUpload)
    defer {
      session.close()
      withExtendedLifetime(multi) {}
    }
    let ends = try EventLog<Result<UploadTask.Outcome, UploadError>>()
    let transfer = transfer(session, "http://127.0.0.1:9", ends)
    let abandoned = try onThread(of: session) { () -> Int in
      _ = transfer.prepare(multi: multi)
      if looksUp { _ = transfer.mayLookUp() }
      transfer.ended(CURLcode(rawValue: code))
      return multi.lookups.abandoned
    }
    #expect(abandoned == count)
    let kind = UploadError(code: CURLcode(rawValue: code), detail: "").kind
    guard case .failure(let error)? = ends.all.first else { throw TestFailure("the request did not end") }
    #expect(error.kind == kind)
  }
}
