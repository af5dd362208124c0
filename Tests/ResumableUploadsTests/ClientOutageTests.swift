// Tests how a client reacts to answers that do not come from its server: those of a portal, of a proxy during a
// restart, or of a maintenance page.

import HTTPMessages
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("The client and unexpected responses") struct ClientOutageTests {
  /// A stream of 500 bytes so far, of which 300 were sent and 200 are acknowledged.
  private func streaming(_ head: UInt64 = 500, isFinished: Bool = false) -> ClientScript {
    var client = ClientScript.created(head, isFinished: isFinished)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    client.release(upTo: 200)
    _ = client.machine.takeNotes()
    return client
  }

  /// Whether the client keeps sending its requests to the same upload resource.
  private func goesOn(_ client: ClientScript) -> Bool {
    var client = client
    if client.next == "wait" { client.goOn() }
    guard client.next == "HEAD", client.request?.url == ClientScript.upload else { return false }
    client.answer(204, ["Upload-Offset": "300"])
    return client.next == "PATCH 300" && client.machine.takeNotes().isEmpty
  }

  /// The request that receives an odd answer after the server has acknowledged bytes.
  enum Question: CaseIterable, Sendable { case append, emptyAppend, lastByte, offset, creation }

  private func asking(_ question: Question) -> ClientScript {
    switch question {
    case .append: return streaming()
    case .emptyAppend:
      // The server has stored all bytes, and reports this in its answer to HEAD.
      var client = streaming(300)
      client.lose()
      client.answer(204, ["Upload-Offset": "300"])
      #expect(client.next == "PATCH 300" && client.maximum == 0)
      return client
    case .lastByte:
      var client = streaming(301)
      client.supply.isFinished = true
      client.lose()
      client.answer(204, ["Upload-Offset": "300"])
      #expect(client.next == "PATCH 300" && client.maximum == 1)
      return client
    case .offset:
      var client = streaming()
      client.lose()
      return client
    case .creation:
      var client = streaming()
      client.answer(410)
      #expect(client.next == "CREATE")
      return client
    }
  }

  @Test(
    "after an acknowledgement, no status ends the stream or moves it elsewhere",
    arguments: Array(200..<600), Question.allCases)
  func anyStatus(_ status: Int, _ question: Question) {
    var client = asking(question)
    client.answer(status, silent: true)
    switch (status, question) {
    case (413, .append): #expect(client.next == "OPTIONS", "smaller ones, then")
    case (410, .append), (410, .emptyAppend), (410, .lastByte), (410, .offset): #expect(client.next == "CREATE")
    default: #expect(client.failure == nil && goesOn(client), "\(client.next)")
    }
  }

  @Test(
    "after an acknowledgement, a permanent status does not end the stream, whether HEAD is answered or not",
    arguments: Array(400..<600), [false, true])
  func lastingStatus(_ status: Int, _ answersHEAD: Bool) {
    var client = streaming()
    var requests = 0
    for _ in 0..<1000 where client.failure == nil {
      if client.next == "wait" {
        client.goOn()
        continue
      }
      requests += 1
      if answersHEAD, client.next == "HEAD" {
        client.answer(204, ["Upload-Offset": "200"])
      } else {
        client.answer(status, silent: true)
      }
    }
    #expect(client.failure == nil)
    for _ in 0..<10 where client.next != "PATCH 200" {
      switch client.next {
      case "wait": client.goOn()
      case "HEAD": client.answer(204, ["Upload-Offset": "200"])
      default: client.answer(503)
      }
    }
    #expect(client.next == "PATCH 200" && client.machine.base == 0)
  }

  @Test("before an acknowledgement, they end it soon, with a reason", arguments: Array(200..<600))
  func anyStatusAtFirst(_ status: Int) {
    var client = ClientScript.created(500)
    client.lose()
    var requests = 0
    while client.failure == nil, requests < 100 {
      requests += 1
      if client.next == "CREATE" {
        client.answer(201, location: ClientScript.upload)
      } else if client.answer(status, silent: true) == .wait {
        // The client waits for as long as the answer asks for.
        if ClientAnswer(status: status, fields: [:]).allowsRetry || [401, 403, 407].contains(status) { return }
        client.goOn()
      }
    }
    #expect(client.failure != nil && requests < 50, "\(client.next) after \(requests) requests")
  }

  @Test("after a maintenance page, the client asks again after a pause, and not ten times at once")
  func maintenancePage() {
    var client = streaming()
    client.lose()
    for _ in 0..<50 {
      #expect(client.answer(200, ["Content-Type": "text/html"]) == .wait)
      client.goOn()
    }
    #expect(goesOn(client))
  }

  @Test("a pause follows responses that form a loop")
  func circles() {
    for status in [400, 409] {
      var client = streaming()
      var atOnce = 0
      while case .send = client.last, atOnce < 50 {
        client.answer(client.next == "HEAD" ? 204 : status, client.next == "HEAD" ? ["Upload-Offset": "200"] : [:])
        atOnce += 1
      }
      #expect(client.next == "wait" && atOnce < 10)
    }
  }

  // MARK: 2xx that are not the server's

  @Test("a 2xx to an append without fields of the protocol acknowledges nothing until HEAD confirms it")
  func silentAppend() {
    var client = streaming()
    client.sendAll()
    client.answer(200, ["Content-Type": "text/html"], silent: true)
    #expect(client.next == "HEAD" && client.machine.acknowledged == 200)
    var confirmed = client
    confirmed.answer(204, ["Upload-Offset": "500"])
    confirmed.answer(204)
    #expect(confirmed.machine.acknowledged == 500)
    client.answer(204, ["Upload-Offset": "300"])
    #expect(client.next == "PATCH 300")
  }

  @Test("neither does one complete the stream; a server that completes it and forgets it is enough")
  func silentEnd() {
    var client = streaming(isFinished: true)
    client.sendAll()
    client.answer(200, ["Content-Type": "text/html"], silent: true)
    #expect(client.next == "HEAD")
    var forgotten = client
    forgotten.insist(404)
    #expect(forgotten.next == "completed")
    var ended = client
    ended.insist(410)
    #expect(ended.next == "CREATE", "410 is not a sign that it was complete")
    client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 300")
    client.lose()
    client.insist(404)
    #expect(client.next == "CREATE", "what was not confirmed then is not complete now")
  }

  @Test("before any acknowledgement, a 2xx is enough, because many servers send no more")
  func silentServer() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.answer(200, silent: true)
    #expect(client.next == "completed")
  }

  /// What HEAD answers after a silent success of the last append.
  enum Confirmation: CaseIterable { case complete, partial, missing, silent }

  @Test(
    "if the protocol is required, HEAD must confirm a 2xx without its fields, also before any acknowledgement",
    arguments: Confirmation.allCases, [true, false])
  func requiredProtocol(_ confirmation: Confirmation, _ isFile: Bool) {
    var client = ClientScript.created(500, isFinished: true) {
      $0.requiresProtocol = true
      if isFile { $0.length = 500 }
    }
    client.sendAll()
    client.answer(201, location: ClientScript.other, silent: true)
    if client.next == "wait" { client.goOn() }
    #expect(client.next == "HEAD")
    switch confirmation {
    case .complete:
      client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?1"])
      #expect(client.next == "PATCH 500")
      client.answer(204)
      #expect(client.next == "completed")
    case .partial:
      client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?0"])
      #expect(client.next == "PATCH 200")
    case .missing:
      client.answer(404)
      while client.next == "wait" { client.goOn() }
      #expect(client.next == "CREATE")
    case .silent:
      client.insist(201, atMost: 20)
      #expect(client.next == "fail")
    }
  }

  @Test("a page does not create a new upload")
  func silentCreation() {
    for isFile in [true, false] {
      var client = isFile ? ClientScript.file(500) : .created(500)
      if isFile {
        client.start()
        client.interim(location: ClientScript.upload)
      }
      client.send(upTo: 300)
      client.interim(["Upload-Offset": "200"])
      client.lose()
      client.answer(410)
      #expect(client.next == "CREATE")
      client.sendAll()
      #expect(client.answer(200, ["Content-Type": "text/html"]) == .wait)
      client.goOn()
      #expect(client.next == "HEAD" && client.request?.url == ClientScript.upload)
    }
  }

  // MARK: Gone, or not

  @Test(
    "a proxy that temporarily answers 404 to every request loses no upload: it continues at its offset",
    arguments: [404, 302, 200, 409, 410, 413, 501, 503])
  func unknownForAWhile(_ creation: Int) {
    var client = streaming()
    for _ in 0..<50 {
      client.answer(client.next == "CREATE" ? creation : 404)
      if client.next == "wait" { client.goOn() }
      #expect(client.failure == nil)
    }
    while client.next == "CREATE" { if client.answer(creation) == .wait { client.goOn() } }
    #expect(goesOn(client))
  }

  @Test("a creation whose connection is lost also returns there")
  func creationLost() {
    var client = streaming()
    client.insist(404)
    #expect(client.next == "CREATE")
    client.lose()
    #expect(goesOn(client))
  }

  @Test("one 404 among many servers does not end an upload", arguments: [1, 2])
  func oneOfMany(_ count: Int) {
    var client = streaming()
    for _ in 0..<count { if client.answer(404) == .wait { client.goOn() } }
    #expect(goesOn(client))
  }

  // MARK: Offsets

  @Test(
    "a server that ends each new upload is asked after pauses, and a stream that it has completely fails soon",
    arguments: [404, 410], [false, true])
  func endsEachUpload(_ status: Int, _ isFinished: Bool) {
    var client = streaming(300, isFinished: isFinished)
    if isFinished { client.interim(["Upload-Offset": "300"]) }
    var (requests, pauses) = (0, 0)
    while client.failure == nil, pauses < 40 {
      switch client.next {
      case "wait":
        pauses += 1
        client.goOn()
        continue
      case "CREATE": client.answer(201, location: "http://host/uploads/\(requests)")
      default: client.answer(status)
      }
      requests += 1
      guard requests < 1000 else { break }
    }
    #expect((client.failure == nil) == !isFinished)
    #expect(requests <= 10 + 5 * pauses, "\(requests) requests, \(pauses) pauses")
    #expect(client.machine.acknowledged == (isFinished ? 300 : 200))
  }

  @Test("an impossible offset, repeatedly: a live stream continues in a new part at the acknowledged offset")
  func impossibleOffset() {
    var client = streaming()
    client.lose()
    var count = 0
    while client.next == "HEAD", count < 20 {
      if client.answer(204, ["Upload-Offset": "301"]) == .wait { client.goOn() }
      count += 1
    }
    #expect(client.next == "CREATE" && client.machine.base == 200 && client.newParts() == [.impossibleOffset])
  }

  // MARK: Limits

  @Test(
    "limits that contradict the accepted bytes end nothing, and are requested again",
    arguments: ["max-append-size=0", "max-size=0", "max-size=100"])
  func absurdLimits(_ limits: String) {
    var client = streaming()
    #expect(client.interim(["Upload-Limit": limits]) == nil)
    client.lose()
    client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?0"])
    if client.next == "wait" {
      client.goOn()
      #expect(client.next == "HEAD")
      client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?0"])
    }
    #expect(client.next == "PATCH 300")
  }

  @Test("a new upload resource that accepts nothing is asked again if an earlier one has accepted bytes")
  func emptyPart() {
    var client = streaming()
    client.lose()
    client.answer(410)
    client.answer(201, ["Upload-Limit": "max-size=0"], location: ClientScript.other)
    #expect(client.next == "wait")
    client.goOn()
    client.answer(204, ["Upload-Offset": "0", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 0" && client.machine.base == 200)
  }

  @Test("a max-size in an acknowledgement of more bytes does not cancel a file", arguments: [0, 1, 399])
  func maximumSizeOfTheFirstAppend(_ size: UInt64) {
    var client = ClientScript.file(500)
    client.start()
    client.interim(["Upload-Limit": "max-append-size=400"], location: ClientScript.upload)
    client.lose()
    client.answer(204, ["Upload-Offset": "0", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 0")
    client.send(upTo: 400)
    client.answer(204, ["Upload-Offset": "400", "Upload-Complete": "?0", "Upload-Limit": "max-size=\(size)"])
    #expect(client.next == "PATCH 400")
  }

  @Test("a max-size below the server's bytes does not cancel a file")
  func absurdSizeOfFile() {
    var client = ClientScript.creatingFile()
    #expect(client.interim(["Upload-Limit": "max-size=100"]) == nil)
    #expect(client.interim(["Upload-Limit": "max-size=400"]) == .tooLarge(limit: 400), "this may be true")
  }

  @Test("a minimum that cannot be satisfied is discarded, and requested again")
  func absurdMinimum() {
    var client = streaming()
    client.interim(["Upload-Limit": "min-append-size=999999999999999"])
    client.lose()
    for _ in 0..<2 { client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?0"]) }
    #expect(client.next == "await 1000000000000299")
    #expect(client.machine.forgetMinimumAppendSize() == .wait)
    client.goOn()
    client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 300")
  }

  @Test(
    "an early end of a file is verified, once the server has acknowledged some of it", arguments: [false, true])
  func earlyEndOfFile(_ inHEAD: Bool) {
    var client = ClientScript.creatingFile()
    if inHEAD {
      client.lose()
      client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?1"])
    } else {
      client.answer(200, ["Upload-Complete": "?1"], isEarly: true)
    }
    if client.next == "wait" { client.goOn() }
    #expect(client.next == "HEAD")
    client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 300")
  }

  // MARK: Progress

  @Test("progress that only HEAD shows counts as progress")
  func progressByHEAD() {
    var client = ClientScript.created(5000)
    var before = client.machine.advances
    for offset in stride(from: 100 as UInt64, through: 5000, by: 100) {
      client.send(upTo: offset)
      client.lose()
      client.answer(204, ["Upload-Offset": "\(offset)"])
      #expect(client.machine.advances > before)
      before = client.machine.advances
    }
    client.lose()
    client.answer(204, ["Upload-Offset": "5000"])
    #expect(client.machine.advances == before, "and the same again is none")
  }

  // MARK: Any of them, in any order

  /// The rule in short: after any answer the client waits, asks, or ends with a reason. When the server itself answers
  /// again, it ends up with the whole stream, and only bytes that the server had lost are missing.
  @Test(
    "unexpected responses in any phase and order: every byte arrives once the server returns",
    arguments: Seed.several(20) + [Seed(6_336_278_219_097_352_176), Seed(4_886_867_862_079_863_935)])
  func anyOrder(_ seed: Seed) {
    var seeds = seed.generator
    for _ in 0..<200 {
      let one = Seed(seeds.next())
      var world = OddWorld(one)
      world.run()
      if let violation = world.violation { Issue.record("\(one): \(violation)") }
    }
  }
}

/// A client, a correct server that keeps its uploads, and an intermediary that answers in its place for a while.
private struct OddWorld {
  var random: SplitMix64
  var client: ClientScript
  var uploads: [String: (base: UInt64, count: UInt64, isComplete: Bool)] = [:]
  var length: UInt64
  var violation: String?
  /// Below this offset the server has stored all bytes, in one upload or another.
  var parts: [(base: UInt64, count: UInt64)] { uploads.values.map { ($0.base, $0.count) } }

  init(_ seed: Seed) {
    random = seed.generator
    length = 200 + UInt64(random.size(upTo: 2000))
    client = .live(UInt64(random.size(upTo: 200))) { _ in }
    if random.chance(30) {
      let size = length
      client = .file(size) { _ in }
    }
    client.start()
  }

  private var isFile: Bool { client.machine.configuration.length != nil }

  mutating func run() {
    // The server itself answers until it has acknowledged bytes. Then comes the outage, and then the server answers
    // again.
    var steps = 0
    while !client.machine.hasAcknowledged, client.last != .completed, steps < 1000 {
      step(odd: 0)
      steps += 1
    }
    for _ in 0..<Int.random(in: 1...80, using: &random) { step(odd: 70) }
    steps = 0
    while violation == nil, client.last != .completed, steps < 20_000 {
      step(odd: 0)
      steps += 1
    }
    guard violation == nil else { return }
    guard client.last == .completed else {
      violation = "no end: \(client.next), \(client.machine.state)"
      return
    }
    // All bytes are there, either in one piece or in parts that overlap or meet.
    var reached: UInt64 = 0
    for part in parts.sorted(by: { $0.base < $1.base }) where part.base <= reached {
      reached = max(reached, part.base + part.count)
    }
    if reached != length { violation = "the server has stored everything up to \(reached) of \(length)" }
  }

  private mutating func step(odd percentage: Int) {
    if let failure = client.failure {
      violation = "ended: \(failure)"
      return
    }
    if !client.supply.isFinished, random.chance(20) {
      let head = min(length, client.supply.head + UInt64(random.size(upTo: 200)))
      client.supply.head = head
      client.supply.isFinished = head == length
    }
    // The client releases acknowledged bytes.
    if !isFile { client.supply.oldest = max(client.supply.oldest, client.machine.acknowledged) }
    client.supply.restart = client.supply.oldest
    switch client.last {
    case .completed: return
    case .wait: client.goOn()
    case .awaitBytes(let end):
      if client.supply.head < end, !client.supply.isFinished {
        client.supply.head = min(length, max(end, client.supply.head))
        client.supply.isFinished = client.supply.head == length
      }
      client.perform(client.machine.bytesAreReady(client.supply))
    default: if random.chance(percentage) { oddly() } else { truly() }
    }
  }

  /// Answers with statuses that no protocol uses here, with missing, doubled or absurd fields, or not at all.
  private mutating func oddly() {
    client.send(upTo: random.chance(50) ? client.supply.head : client.sentUpTo)
    if random.chance(20) {
      client.lose()
      return
    }
    let statuses = Array(200..<600)
    var fields = HeaderFields()
    if random.chance(20) { fields.append("Content-Type", "text/html") }
    if random.chance(20) { fields.append("Retry-After", "10000000000000") }
    if random.chance(10) { fields.append("Upload-Limit", "max-append-size=x") }
    if random.chance(10) {
      fields.append("Upload-Offset", ["-1", "9e9", "", "?1", "1, 1"].randomElement(using: &random) ?? "")
    }
    let location = random.chance(30) ? "http://portal/login" : nil
    let common =
      random.chance(50)
      ? [200, 204, 301, 302, 307, 308, 400, 401, 403, 404, 405, 409, 410, 413, 500, 501, 502, 503]
      : statuses
    client.answer(
      common.randomElement(using: &random) ?? 404, fields, location: location, isEarly: random.chance(30), silent: true)
  }

  private mutating func truly() {
    guard let request = client.request else { return }
    client.sendAll()
    if let url = request.url, url.hasPrefix("http://portal/") { return void(client.answer(200, silent: true)) }
    var fields = HeaderFields()
    client.machine.version.setVersion(&fields)
    let completes = client.machine.version.completeness(request.fields) == true
    switch request.purpose {
    case .discovery: client.answer(200, ["Upload-Limit": "min-size=0"])
    case .cancellation: violation = "it cancels"
    case .creation:
      let url = "http://host/uploads/\(uploads.count)"
      let count = client.sentUpTo - client.machine.base
      uploads[url] = (client.machine.base, count, completes)
      client.machine.version.setCompleteness(completes, &fields)
      fields.append("Upload-Offset", String(count))
      if random.chance(50), !completes || random.chance(50) {
        client.interim(["Upload-Offset": String(count)], location: url)
      }
      client.answer(201, fields, location: url)
    case .offsetRetrieval, .append:
      guard let url = request.url, var upload = uploads[url] else { return void(client.answer(404)) }
      if request.purpose == .append {
        guard UploadFields.offset(request.fields) == upload.count,
          !upload.isComplete || client.sentUpTo == upload.base + upload.count
        else { return void(client.answer(409, ["Upload-Offset": String(upload.count)])) }
        upload.count = client.sentUpTo - upload.base
        upload.isComplete = completes
        uploads[url] = upload
      }
      fields.append("Upload-Offset", String(upload.count))
      client.machine.version.setCompleteness(upload.isComplete, &fields)
      client.answer(request.purpose == .append && upload.isComplete ? 200 : 204, fields)
    }
  }

  private func void(_ action: UploadClientStateMachine.Action) {}
}
