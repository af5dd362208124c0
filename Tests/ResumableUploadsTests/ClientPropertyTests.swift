// Tests the client's state machine against a server that first answers anything in any order, and then correctly.

import HTTPMessages
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("The client and random responses") struct ClientPropertyTests {
  /// A client, its buffer, and a server that keeps the bytes that it receives and answers at random.
  private struct World {
    var random: SplitMix64
    var machine: UploadClientStateMachine
    let isFile: Bool
    let length: UInt64
    var head: UInt64 = 0
    var isFinished = false
    /// The stream offset up to which the client has released bytes.
    var released: UInt64 = 0
    var current: ClientRequest?
    var sentUpTo: UInt64 = 0
    var waits = false
    var awaited: UInt64?
    var outcome: UploadClientStateMachine.Action?
    var requests = 0
    /// The remaining uploads of the server: base, number of bytes, and whether complete.
    var uploads: [String: (base: UInt64, count: UInt64, isComplete: Bool)] = [:]
    var uploadCount = 0
    var violation: String?
    /// The offset that credible answers (104, 2xx) have acknowledged in the current upload.
    var acknowledged: UInt64 = 0
    /// The number of bytes that the buffer keeps before it discards the oldest. Nil without limit.
    let capacity: UInt64?
    /// Whether the server joins the uploads of the stream.
    let joinsParts: Bool
    /// The bytes that the client has reported as lost.
    var lost: [Range<UInt64>] = []

    init(_ seed: Seed, overflows: Bool = false) {
      random = seed.generator
      let mayBeFile = random.chance(40)
      isFile = mayBeFile && !overflows
      length = overflows ? UInt64.random(in: 2000...6000, using: &random) : UInt64(random.size(upTo: 4000))
      capacity = overflows ? UInt64.random(in: 40...400, using: &random) : nil
      joinsParts = overflows ? random.chance(50) : false
      var configuration = UploadClientStateMachine.Configuration()
      configuration.discovers = random.chance(50)
      let isOptimistic = random.chance(70)
      configuration.isOptimistic = isFile ? isOptimistic : false
      if isFile { configuration.length = length }
      if joinsParts { configuration.streamID = "s" }
      if random.chance(50) { configuration.appendSize = UInt64(random.size(upTo: 700)) }
      configuration.version = InteropVersion.drafts.randomElement(using: &random) ?? .newest
      machine = UploadClientStateMachine(configuration)
      if isFile { (head, isFinished) = (length, true) }
      let supply = supply
      perform(machine.start(supply))
    }

    var supply: Supply {
      guard let capacity else { return Supply(oldest: isFile ? 0 : released, head: head, isFinished: isFinished) }
      let oldest = max(released, head - min(head, capacity))
      // An eighth of the buffer stays free.
      let room = isFinished ? 0 : capacity / 8 - min(capacity / 8, capacity - (head - oldest))
      return Supply(oldest: oldest, head: head, isFinished: isFinished, restart: min(head, oldest + room))
    }

    mutating func perform(_ action: UploadClientStateMachine.Action) {
      let notes = machine.takeNotes()
      for case .serverWentBack(_, let offset) in notes {
        // The server has reported twice that it has lost these bytes.
        acknowledged = min(acknowledged, offset)
      }
      if capacity != nil { checkLosses(notes, isAtEnd: action == .completed) }
      if machine.acknowledged > max(machine.sent, lost.last?.upperBound ?? 0) && machine.sent != 0 {
        violation = "acknowledged what was never sent"
      }
      released = max(released, machine.acknowledged)
      (waits, awaited) = (false, nil)
      switch action {
      case .none: break
      case .send(let request):
        if current != nil { violation = "two requests at once" }
        requests += 1
        current = request
        sentUpTo = machine.base
        switch request.content {
        case .bytes(let start, _):
          sentUpTo = start
          // The central property: acknowledged bytes are not sent again, unless their upload is gone.
          if request.purpose == .append, start < acknowledged {
            violation = "\(start) was acknowledged up to \(acknowledged)"
          }
          if request.purpose == .append, !isFile, start < released { violation = "\(start) is released" }
          if let end = lost.last?.upperBound, start < end { violation = "\(start) was reported as lost" }
        case .empty: if case .appending(let append) = machine.state { sentUpTo = append.start }
        case .absent: break
        }
        if request.purpose == .creation { acknowledged = machine.acknowledged }
      case .awaitBytes(let end): awaited = end
      case .wait: waits = true
      case .completed, .leftIncomplete, .fail, .unsupported: outcome = action
      }
    }

    /// A loss is reported once, with an upload behind it or at the end.
    private mutating func checkLosses(_ notes: [ClientNote], isAtEnd: Bool) {
      var count = 0
      for (index, note) in notes.enumerated() {
        guard case .gap(let start, let end, let isServersFault) = note else { continue }
        if start < lost.last?.upperBound ?? 0 { violation = "\(start) is reported as lost once more" }
        lost.append(start..<end)
        count += isServersFault ? 0 : 1
        let isFollowed = notes[index...].contains { if case .created = $0 { true } else { false } }
        if !isFollowed, !isAtEnd { violation = "\(start)..<\(end) is reported as lost, and nothing follows" }
      }
      if count > 1 { violation = "one refusal is \(count) losses" }
    }

    /// The first byte that is neither stored nor reported as lost.
    var missing: UInt64 {
      let stored = uploads.values.map { $0.base..<$0.base + $0.count }
      return (stored + lost).sorted { $0.lowerBound < $1.lowerBound }.reduce(0) { reached, range in
        range.lowerBound <= reached ? max(reached, range.upperBound) : reached
      }
    }

    /// Performs an action of the client; true if there was one.
    mutating func move() -> Bool {
      if !isFinished, random.chance(20) {
        head = min(length, head + UInt64(random.size(upTo: 300)))
        isFinished = head == length
      }
      if waits {
        perform(machine.goOn(supply))
        if waits { violation = "a pause is followed by a pause" }
        return true
      }
      if let awaited {
        if !isFinished && head < awaited {
          head = min(length, head + UInt64(random.size(upTo: 300)))
          isFinished = head == length
          if head < awaited && !isFinished { return true }
        }
        perform(machine.bytesAreReady(supply))
        return true
      }
      return false
    }

    mutating func hand(all: Bool) {
      // Bytes that were discarded after the request began are not sent.
      guard case .bytes(let start, let maximum)? = current?.content, sentUpTo >= supply.oldest else { return }
      let end = min(head, start + min(maximum ?? .max, .max - start))
      sentUpTo = all || end <= sentUpTo ? max(sentUpTo, end) : UInt64.random(in: sentUpTo...end, using: &random)
    }

    mutating func answer(_ status: Int, _ fields: HeaderFields, location: String? = nil, isEarly: Bool = false) {
      current = nil
      perform(
        machine.answered(
          ClientAnswer(status: status, fields: fields, location: location, isEarly: isEarly), sentUpTo: sentUpTo, supply
        ))
    }

    mutating func interrupt() {
      current = nil
      perform(machine.interrupted(sentUpTo: sentUpTo))
    }

    /// This machine lacks something for the request, so nothing is sent.
    mutating func runShort() {
      current = nil
      perform(machine.couldNotSend())
    }

    // MARK: A server that does as it should

    mutating func answerTruly() {
      guard let request = current else { return }
      hand(all: true)
      var fields = HeaderFields()
      machine.version.setVersion(&fields)
      switch request.purpose {
      case .discovery: answer(200, machine.version.hasLimits ? ["Upload-Limit": "min-size=0"] : fields)
      case .cancellation: answer(204, [:])
      case .creation:
        uploadCount += 1
        let url = "http://host/uploads/\(uploadCount)"
        let isComplete = machine.version.completeness(request.fields) == true
        uploads[url] = (machine.base, sentUpTo - machine.base, isComplete)
        if isComplete { acknowledged = sentUpTo }
        machine.version.setCompleteness(isComplete, &fields)
        if joinsParts { fields.append("Stream-ID", "s") }
        answer(201, fields, location: url)
      case .offsetRetrieval, .append: answerUpload(request, fields)
      }
    }

    private mutating func answerUpload(_ request: ClientRequest, _ fields: HeaderFields) {
      guard let url = request.url, var upload = uploads[url] else { return answer(404, [:]) }
      var fields = fields
      func finish(_ status: Int) {
        fields.append("Upload-Offset", String(upload.count))
        machine.version.setCompleteness(upload.isComplete, &fields)
        answer(status, fields)
      }
      guard request.purpose == .append else { return finish(204) }
      guard UploadFields.offset(request.fields) == upload.count, !upload.isComplete || request.content == .empty else {
        return finish(409)
      }
      upload.count = sentUpTo - upload.base
      upload.isComplete = machine.version.completeness(request.fields) == true
      uploads[url] = upload
      // An invented Location may have sent a later part to the upload of an earlier one, which counts from another
      // offset. That upload's offset acknowledges none of these bytes.
      if upload.base == machine.base { acknowledged = sentUpTo }
      finish(upload.isComplete ? 200 : 204)
    }

    // MARK: A server that refuses everything

    mutating func refuse() {
      guard let request = current else { return }
      hand(all: random.chance(50))
      guard random.chance(20) else {
        let isToUpload = request.purpose == .append || request.purpose == .offsetRetrieval
        return answer(isToUpload ? [404, 404, 410, 503].randomElement(using: &random) ?? 404 : 503, [:])
      }
      // What the request had to bring about may have happened.
      if random.chance(50) {
        if request.purpose == .creation {
          uploadCount += 1
          uploads["http://host/uploads/\(uploadCount)"] = (machine.base, 0, false)
        } else if request.purpose == .append, let url = request.url, let upload = uploads[url], !upload.isComplete,
          UploadFields.offset(request.fields) == upload.count
        {
          uploads[url]?.count = sentUpTo - upload.base
        }
      }
      interrupt()
    }

    // MARK: A server that responds with anything

    mutating func anyFields() -> HeaderFields {
      var fields = HeaderFields()
      if random.chance(60) { machine.version.setVersion(&fields) }
      if random.chance(30) {
        fields.append("Upload-Offset", String(UInt64.random(in: 0...length + 10, using: &random)))
      }
      if random.chance(20) { machine.version.setCompleteness(random.chance(30), &fields) }
      if random.chance(15) {
        let key = ["max-append-size", "min-append-size", "max-age", "min-size"].randomElement(using: &random) ?? ""
        fields.append("Upload-Limit", "\(key)=\(random.size(upTo: 500))")
      }
      if random.chance(5) { fields.append("Upload-Limit", "max-size=\(length + 10)") }
      return fields
    }

    mutating func answerAnything() {
      guard current != nil else { return }
      hand(all: random.chance(50))
      let places = Array(uploads.keys) + ["http://host/uploads/none"]
      let place = random.chance(20) ? places.randomElement(using: &random) : nil
      switch random.chance(35) ? 0 : random.chance(50) ? 1 : 2 {
      case 0: interrupt()
      case 1:
        let answer = ClientAnswer(status: 104, fields: anyFields(), location: place)
        if let failure = machine.received(interim: answer, sentUpTo: sentUpTo) {
          _ = failure
          current = nil
          perform(machine.cancel())
        }
        // An acknowledgement counts, regardless of its sender.
        acknowledged = max(acknowledged, machine.acknowledged)
        perform(.none)
      default:
        let status =
          [200, 204, 307, 308, 400, 404, 408, 409, 410, 412, 413, 423, 429, 500, 501, 503].randomElement(using: &random)
          ?? 500
        // A redirect to another upload would be a false answer that no client can detect.
        let location = [307, 308].contains(status) ? current?.url : place
        answer(status, anyFields(), location: location, isEarly: random.chance(30))
        acknowledged = machine.acknowledged
      }
    }
  }

  @Test(
    "for any responses, the client sends one request at a time, repeats no acknowledged bytes, and ends once the responses are true again",
    arguments: Seed.several(40))
  func anyAnswers(_ seed: Seed) {
    var seeds = seed.generator
    for _ in 0..<100 {
      let one = Seed(seeds.next())
      var world = World(one)
      var steps = 0
      while world.outcome == nil, world.violation == nil, steps < 200 {
        if !world.move() { world.random.chance(60) ? world.answerTruly() : world.answerAnything() }
        steps += 1
      }
      // An invented 2xx may have moved the client to another offset than the server's. True answers correct this.
      var quiet = 0
      while world.outcome == nil, world.violation == nil, quiet < 20_000 {
        if !world.move() { world.answerTruly() }
        quiet += 1
      }
      if let violation = world.violation { Issue.record("\(one): \(violation)") }
      if world.outcome == nil { Issue.record("\(one): no end in \(quiet) steps, at \(world.machine.state)") }
      if world.outcome == .completed, !(world.isFinished && world.machine.acknowledged == world.length) {
        Issue.record("\(one): complete at \(world.machine.acknowledged) of \(world.length)")
      }
    }
  }

  @Test(
    "a server with only lost connections receives every byte once, and none again",
    arguments: Seed.several(40))
  func onlyInterruptions(_ seed: Seed) {
    var seeds = seed.generator
    for _ in 0..<50 {
      let one = Seed(seeds.next())
      var world = World(one)
      var steps = 0
      while world.outcome == nil, world.violation == nil, steps < 50_000 {
        if !world.move() {
          if world.random.chance(70) {
            world.answerTruly()
          } else {
            world.hand(all: false)
            // The bytes of it that have arrived stay.
            if let request = world.current, request.purpose == .append, let url = request.url,
              let upload = world.uploads[url], UploadFields.offset(request.fields) == upload.count,
              !upload.isComplete, world.sentUpTo > upload.base + upload.count
            {
              let arrived = UInt64.random(in: upload.base + upload.count...world.sentUpTo, using: &world.random)
              world.uploads[url]?.count = arrived - upload.base
              world.acknowledged = arrived
            }
            world.interrupt()
          }
        }
        steps += 1
      }
      #expect(
        world.outcome == .completed && world.violation == nil, "\(one): \(world.violation ?? "\(world.machine.state)")")
      #expect(world.machine.acknowledged == world.length)
    }
  }

  @Test(
    "while a server refuses uploads and the buffer overflows, each byte is stored or reported as lost once",
    arguments: Seed.several(40))
  func refusals(_ seed: Seed) {
    var seeds = seed.generator
    var losses = 0
    for _ in 0..<20 {
      let one = Seed(seeds.next())
      var world = World(one, overflows: true)
      var steps = 0
      while world.outcome == nil, world.violation == nil, steps < 20_000 {
        steps += 1
        if world.move() { continue }
        // A client gives up at last if only the end of its stream is refused.
        let isRefused = steps < 500 && world.machine.hasAcknowledged && !world.isFinished && world.random.chance(80)
        isRefused ? world.refuse() : world.answerTruly()
      }
      #expect(
        world.outcome == .completed && world.violation == nil && world.missing == world.length,
        "\(one): \(world.violation ?? "\(world.machine.state)"), \(world.missing) of \(world.length)")
      losses += world.lost.count
    }
    #expect(losses > 0, "\(seed)")
  }

  @Test(
    "a request that cannot be sent is repeated, and counts neither against the upload resource nor the creation",
    arguments: Seed.several(40))
  func shortages(_ seed: Seed) {
    var seeds = seed.generator
    for _ in 0..<50 {
      let one = Seed(seeds.next())
      var world = World(one)
      var steps = 0
      while world.outcome == nil, world.violation == nil, steps < 20_000 {
        let requests = world.requests
        if !world.move() { steps > 200 || world.random.chance(60) ? world.answerTruly() : world.answerAnything() }
        steps += 1
        guard world.requests > requests, let request = world.current, request.purpose != .cancellation,
          !world.machine.resource.isDoubted, steps <= 200, world.random.chance(30)
        else { continue }
        let before = world.machine
        for _ in 0..<20 {
          world.runShort()
          _ = world.move()
          guard world.current != nil else { break }
        }
        let after = world.machine
        #expect(world.current?.purpose == (request.purpose == .append ? .offsetRetrieval : request.purpose), "\(one)")
        #expect(after.isOptimistic == before.isOptimistic && after.resource.doubts == before.resource.doubts, "\(one)")
        #expect(after.uploadURL == before.uploadURL && after.base == before.base, "\(one)")
        #expect(after.parts.former.count == before.parts.former.count, "\(one)")
      }
      if let violation = world.violation { Issue.record("\(one): \(violation)") }
      if world.outcome == nil { Issue.record("\(one): no end in \(steps) steps, at \(world.machine.state)") }
    }
  }

  @Test("after the end, no response has an effect", arguments: Seed.several(5))
  func afterTheEnd(_ seed: Seed) {
    var world = World(seed)
    var steps = 0
    while world.outcome == nil, steps < 50_000 {
      if !world.move() { world.answerTruly() }
      steps += 1
    }
    #expect(world.machine.state == .ended)
    #expect(world.machine.answered(ClientAnswer(status: 500, fields: [:]), sentUpTo: 0, world.supply) == .none)
    #expect(world.machine.interrupted(sentUpTo: 0) == .none && world.machine.goOn(world.supply) == .none)
    #expect(world.machine.bytesAreReady(world.supply) == .none && world.machine.takeNotes().isEmpty)
    #expect(world.machine.state == .ended)
  }
}
