// The state machine of a download against arbitrary responses: whatever it calls complete is one representation.

import HTTPMessages
import PropertyTesting
import Testing

@testable import Downloads
@testable import UploadClient

@Suite("The state machine of a download")
struct DownloadStateMachineTests {
  /// A representation, whose version is its bytes.
  private struct Resource {
    var version: UInt8
    var length: UInt64
    var hasTag: Bool

    var fields: [(String, String)] { hasTag ? [("ETag", "\"\(version)\"")] : [] }

    /// Its `Repr-Digest`.
    var digest: String {
      DigestField([("sha-256", length > 0 ? [version, UInt8(truncatingIfNeeded: length)] : [])]).value
    }
  }

  /// The possible behaviours of a server.
  private enum Behavior: CaseIterable {
    case proper, ignoresRange, ignoresCondition, otherRange, noContentRange, otherTotal, shorterPart, unsatisfied,
      failed,
      excess, withoutTag, unknownLength, shorterStarPart, portal, oddLength, onlyDigest, oldDigest

    /// Whether a whole response has a digest and neither a length nor chunks.
    var statesOnlyDigest: Bool { self == .onlyDigest || self == .oldDigest }
  }

  @Test("a complete file is one whole representation, however the server behaves", arguments: Seed.several(20))
  func random(_ seed: Seed) {
    var random = seed.generator
    for _ in 0..<300 {
      var resource = Resource(version: 0, length: .random(in: 0...40, using: &random), hasTag: random.chance(80))
      var machine = DownloadStateMachine()
      /// The bytes that the shell has written, as the version of each.
      var file: [UInt8] = []
      var isComplete = false
      var log = "\(seed):"
      var lengths = [resource.version: resource.length]
      /// The wrong lengths that a server has stated. No client can detect them as long as the content fits.
      var falseLengths: [UInt8: Set<UInt64>] = [:]
      /// How often the machine has asked for the rest of bytes that seemed complete.
      var mismatchCount = 0
      requests: for attempt in 0..<60 where !isComplete {
        if random.chance(15) {
          resource.version += 1
          resource.length = .random(in: 0...40, using: &random)
          lengths[resource.version] = resource.length
        }
        let before = machine.count
        let fields = machine.begin()
        if machine.count < before { file = [] }
        let start = fields["Range"].flatMap { UInt64($0.dropFirst(6).dropLast()) }
        let condition = fields["If-Range"]
        #expect((start ?? 0) == UInt64(file.count), "\(log)")
        // Eventually, every server follows the rules.
        let behavior = attempt > 40 ? .proper : Behavior.allCases.randomElement(using: &random)!
        guard let (response, content) = answer(behavior, resource, start, condition, &random) else { continue }
        log += " \(behavior) \(response.status) \(response.fields.lines) \(content.count);"
        if behavior == .excess { falseLengths[resource.version, default: []].insert(resource.length / 2) }
        let count = machine.count
        // Another server has answered, so the shell asks again.
        if machine.isDoubtful(response) { continue }
        switch machine.answered(response) {
        case .broken where behavior == .oddLength: continue
        case .broken:
          #expect(behavior != .proper, "\(log)")
          break requests
        case .fail:
          #expect(start != nil, "\(log)")
          break requests
        case .startOver:
          #expect(start != nil, "\(log)")
          file = []
          continue
        case .complete: isComplete = true
        case .content(let offset, _):
          #expect(offset == 0 || offset == count, "\(log)")
          if offset == 0 { file = [] }
        }
        // A 416 that confirms the end has no content.
        var rest = content[...]
        let cut =
          random.chance(attempt > 40 ? 0 : 40) ? Int.random(in: 0...content.count, using: &random) : content.count
        rest = rest.prefix(cut)
        while !rest.isEmpty {
          let piece = rest.prefix(Int.random(in: 1...8, using: &random))
          rest = rest.dropFirst(piece.count)
          guard machine.received(piece.count) else {
            #expect(behavior == .excess, "\(log)")
            file = []
            continue requests
          }
          file += piece
        }
        // A lost connection looks like the end of such a response, except over HTTP/2.
        let hidesLoss = response.status == 200 && behavior.statesOnlyDigest && response.version < .http2
        let isWhole = cut == content.count || hidesLoss
        if !isComplete {
          switch machine.ended(isWhole: isWhole) {
          case .complete: isComplete = true
          case .goOn: #expect(isWhole, "\(log)")
          case .broken: break
          }
        }
        // The comparison by the shell.
        let found = Resource(version: file.first ?? 0, length: UInt64(file.count), hasTag: false)
        guard isComplete, let digest = machine.digest, digest != found.digest else { continue }
        isComplete = false
        let mismatch = machine.mismatched()
        log += " \(mismatch);"
        #expect(mismatch == .wrong || hidesLoss, "\(log)")
        guard mismatch == .mayLackRest else { break requests }
        mismatchCount += 1
        #expect(mismatchCount < 3, "\(log)")
      }
      guard isComplete else { continue }
      // The version is unknown if a server ignores the condition and sends no tag.
      let versions = Set(file)
      #expect(versions.count <= 1, "\(log)")
      if let version = versions.first {
        let isWhole = lengths[version] == UInt64(file.count)
        #expect(isWhole || falseLengths[version]?.contains(UInt64(file.count)) == true, "it is whole: \(log)")
      }
      #expect(machine.length == nil || machine.length == UInt64(file.count), "\(log)")
    }
  }

  private func answer(
    _ behavior: Behavior, _ resource: Resource, _ start: UInt64?, _ condition: String?, _ random: inout SplitMix64
  ) -> (HTTPResponse, [UInt8])? {
    func response(_ status: Int, _ more: [(String, String)], _ range: Range<UInt64>) -> (HTTPResponse, [UInt8]) {
      let fields = behavior == .withoutTag && status == 200 ? [] : resource.fields
      return (HTTPResponse(status, fields + more), [UInt8](repeating: resource.version, count: range.count))
    }
    func whole() -> (HTTPResponse, [UInt8]) {
      guard behavior.statesOnlyDigest else {
        return response(200, [("Content-Length", "\(resource.length)")], 0..<resource.length)
      }
      var stated = resource
      if behavior == .oldDigest { stated.version &-= 1 }
      var all = response(200, [("Repr-Digest", stated.digest)], 0..<resource.length)
      if random.chance(50) { all.0.version = .http2 }
      return all
    }
    if behavior == .failed { return nil }
    if behavior == .portal, start != nil, condition?.hasPrefix("\"") == true {
      return (HTTPResponse(status: 200, fields: ["Content-Length": "3"]), [0xFF, 0xFF, 0xFF])
    }
    if behavior == .oddLength {
      let text = ["1, \(resource.length)", "+1", "0x1", "1 2", "-1", "\(resource.length)k"].randomElement(
        using: &random)!
      return response(200, [("Content-Length", text)], 0..<min(1, resource.length))
    }
    if behavior == .unknownLength {
      // A length that contradicts chunks does not count.
      let more = random.chance(50) ? [("Content-Length", "1")] : []
      return response(200, [("Transfer-Encoding", "chunked")] + more, 0..<resource.length)
    }
    if behavior == .excess { return response(200, [("Content-Length", "\(resource.length / 2)")], 0..<resource.length) }
    let isCurrent = resource.hasTag && condition == "\"\(resource.version)\""
    guard let start, behavior != .ignoresRange, isCurrent || behavior == .ignoresCondition && resource.hasTag else {
      return whole()
    }
    guard start < resource.length, behavior != .unsatisfied else {
      return response(416, [("Content-Range", "bytes */\(resource.length)")], 0..<0)
    }
    func part(_ range: Range<UInt64>, _ total: String, says: Range<UInt64>? = nil) -> (HTTPResponse, [UInt8]) {
      let said = says ?? range
      return response(206, [("Content-Range", "bytes \(said.lowerBound)-\(said.upperBound - 1)/\(total)")], range)
    }
    switch behavior {
    case .otherRange: return part(0..<start, "\(resource.length)")
    case .noContentRange: return response(206, [], start..<resource.length)
    case .otherTotal: return part(start..<resource.length, "\(resource.length + 1)")
    case .shorterPart, .shorterStarPart:
      let end = UInt64.random(in: start + 1...resource.length, using: &random)
      return part(start..<end, behavior == .shorterPart ? "\(resource.length)" : "*")
    default: return part(start..<resource.length, random.chance(20) ? "*" : "\(resource.length)")
    }
  }

  @Test(
    "a part is continued only by a strong tag, or by a date without a tag that is older than the response",
    arguments: [
      ([("ETag", "\"a\"")], "\"a\""), ([("ETag", "W/\"a\"")], nil), ([("ETag", "a")], nil),
      (
        [
          ("ETag", "W/\"a\""), ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
          ("Date", "Sun, 06 Nov 1994 09:49:37 GMT"),
        ], nil
      ),
      (
        [("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"), ("Date", "Sun, 06 Nov 1994 08:49:38 GMT")],
        "Sun, 06 Nov 1994 08:49:37 GMT"
      ),
      ([("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"), ("Date", "Sun, 06 Nov 1994 08:49:37 GMT")], nil),
      ([("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")], nil),
      ([("Last-Modified", "now"), ("Date", "later")], nil),
      // Two tags with different control characters look equal.
      ([("ETag", "\"a\u{1}\"")], nil),
      ([], nil),
    ] as [([(String, String)], String?)])
  func validators(_ fields: [(String, String)], _ expected: String?) {
    let response = HTTPResponse(200, fields)
    #expect(DownloadStateMachine.validator(response) == expected)
  }

  /// A download of which the first `count` bytes exist.
  private func interrupted(_ count: Int, length: UInt64?) -> DownloadStateMachine {
    var machine = DownloadStateMachine()
    _ = machine.begin()
    let fields = [("ETag", "\"a\"")] + (length.map { [("Content-Length", "\($0)")] } ?? [])
    let first = machine.answered(HTTPResponse(200, fields))
    let isTaken = machine.received(count)
    #expect(first == .content(from: 0, reason: nil) && machine.length == length && isTaken)
    _ = machine.ended(isWhole: false)
    let next = machine.begin()
    #expect(next["Range"] == "bytes=\(count)-")
    return machine
  }

  private func part(_ range: String) -> HTTPResponse {
    HTTPResponse(status: 206, fields: ["ETag": "\"a\"", "Content-Range": range])
  }

  @Test(
    "a part continues the existing bytes if it lies within the length that any response has stated",
    arguments: [
      (10, "bytes 4-9/10", true), (10, "bytes 4-9/*", true), (10, "bytes 4-8/*", true), (10, "bytes 4-10/*", false),
      (10, "bytes 4-9/11", false), (10, "bytes 3-9/10", false), (nil, "bytes 4-9/10", true), (nil, "bytes 4-9/*", true),
    ] as [(UInt64?, String, Bool)])
  func parts(_ length: UInt64?, _ range: String, _ continues: Bool) {
    var machine = interrupted(4, length: length)
    let answer = machine.answered(part(range))
    #expect(answer == (continues ? .content(from: 4, reason: nil) : .startOver(.range)))
    guard continues else { return }
    #expect(machine.length == (range.hasSuffix("*") ? length : 10))
  }

  @Test(
    "a later digest replaces the first one only if the bytes can be compared with it",
    arguments: [("md5=:AAAA:", false), ("?", false), ("sha-512=:\(String(repeating: "A", count: 86))==:", true)])
  func laterDigests(_ later: String, _ counts: Bool) {
    let first = "sha-256=:\(String(repeating: "A", count: 43))=:"
    var machine = DownloadStateMachine()
    _ = machine.begin()
    _ = machine.answered(HTTPResponse(200, [("ETag", "\"a\""), ("Content-Length", "10"), ("Repr-Digest", first)]))
    _ = machine.received(4)
    _ = machine.ended(isWhole: false)
    _ = machine.begin()
    let fields = [("ETag", "\"a\""), ("Content-Range", "bytes 4-9/10"), ("Repr-Digest", later)]
    let answer = machine.answered(HTTPResponse(206, fields))
    #expect(answer == .content(from: 4, reason: nil) && machine.digest == (counts ? later : first))
  }

  @Test("a whole response to a request for the rest states why the existing bytes do not count", arguments: [1, 4])
  func restarted(_ count: Int) {
    for (tag, reason) in [("\"a\"", DownloadRestart.ignored), ("\"b\"", .changed)] {
      var machine = interrupted(count, length: 10)
      let answer = machine.answered(HTTPResponse(status: 200, fields: ["ETag": tag]))
      #expect(answer == .content(from: 0, reason: reason) && machine.count == 0)
    }
  }

  @Test(
    "a whole response with the same tag and another length is not taken as the file",
    arguments: [
      ("\"a\"", 10, 1, false), ("\"a\"", 10, 11, false), ("\"a\"", 10, 10, true), ("\"b\"", 10, 1, true),
      ("\"a\"", nil, 1, true), ("\"a\"", 10, nil, true),
    ] as [(String, UInt64?, UInt64?, Bool)])
  func contradicted(_ tag: String, _ length: UInt64?, _ later: UInt64?, _ isContent: Bool) {
    var machine = interrupted(4, length: length)
    let fields = [("ETag", tag)] + (later.map { [("Content-Length", "\($0)")] } ?? [])
    let answer = machine.answered(HTTPResponse(200, fields))
    #expect(
      answer == (isContent ? .content(from: 0, reason: tag == "\"a\"" ? .ignored : .changed) : .startOver(.range)))
    #expect(machine.count == 0 && (isContent || machine.begin().all.isEmpty))
  }

  /// The status, the `Content-Length`, the `Content-Range` (`N` is the number of bytes that exist), and a word of the
  /// reason.
  private static let contradictions: [(Int, String?, String?, String)] = [
    (200, "20", nil, "lengths"), (206, nil, "bytes N-19/20", "lengths"), (206, nil, "bytes 0-9/10", "other bytes"),
    (206, nil, nil, "other bytes"), (416, nil, "bytes */20", "refuses"), (416, nil, nil, "refuses"),
    (412, nil, nil, "refuses"),
  ]

  @Test(
    "the third response that contradicts an earlier one of the same version ends the download, unless it gets further, or has changed, each time",
    arguments: contradictions,
    [
      (tag: "\"a\"" as String?, getsFurther: false, changes: false), ("\"a\"", true, false), ("\"a\"", false, true),
      (nil, false, false), (nil, true, false), (nil, false, true),
    ])
  func contradictedAgain(
    _ contradiction: (status: Int, length: String?, range: String?, reason: String),
    _ attempt: (tag: String?, getsFurther: Bool, changes: Bool)
  ) {
    // Without a tag, a whole response is another version.
    if contradiction.status == 200, attempt.tag == nil { return }
    var machine = DownloadStateMachine()
    for number in 1...3 {
      _ = machine.begin()
      let tag = attempt.changes ? "\"\(number)\"" : "\"a\""
      let whole = HTTPResponse(status: 200, fields: ["ETag": tag, "Content-Length": "1\(number)"])
      let first = machine.answered(whole)
      let isTaken = machine.received(attempt.getsFurther ? 3 + number : 4)
      #expect(first == .content(from: 0, reason: nil) && isTaken)
      _ = machine.ended(isWhole: false)
      let range = machine.begin()
      #expect(range.all.count == 2)
      let fields = [
        ("ETag", attempt.tag.map { _ in tag }), ("Content-Length", contradiction.length),
        ("Content-Range", contradiction.range?.replacing("N", with: "\(machine.count)")),
      ]
      let answer = machine.answered(
        HTTPResponse(contradiction.status, fields.compactMap { name, value in value.map { (name, $0) } }))
      if number == 3, !attempt.getsFurther, !attempt.changes {
        guard case .fail(let reason) = answer else {
          Issue.record("\(answer)")
          return
        }
        #expect(reason.contains(contradiction.reason))
      } else {
        #expect(answer == .startOver(contradiction.status == 412 ? .changed : .range), "\(number)")
      }
      #expect(machine.count == 0)
    }
  }

  @Test("without a request for the rest, another length is not a contradiction")
  func notAskedForRest() {
    // The bytes of the resume data were lost, so everything is requested.
    var machine = DownloadStateMachine(
      resuming: DownloadResumeData(path: "p", inode: 1, byteCount: 0, validator: "\"a\"", length: 10))
    let answer = machine.answered(HTTPResponse(200, [("ETag", "\"a\""), ("Content-Length", "11")]))
    #expect(answer == .content(from: 0, reason: nil) && machine.length == 11)
  }

  @Test("parts with the same tag and another date are of the same version, and the third one ends the download")
  func otherDates() {
    var machine = DownloadStateMachine()
    let date = "Mon, 01 Jan 2024 00:00:0"
    for number in 1...3 {
      _ = machine.begin()
      let fields = [("ETag", "\"a\""), ("Content-Length", "10"), ("Last-Modified", "\(date)0 GMT")]
      _ = machine.answered(HTTPResponse(200, fields))
      _ = machine.received(4)
      _ = machine.ended(isWhole: false)
      _ = machine.begin()
      let later = [("ETag", "\"a\""), ("Content-Range", "bytes 4-9/10"), ("Last-Modified", "\(date)1 GMT")]
      let answer = machine.answered(HTTPResponse(206, later))
      #expect(
        answer
          == (number < 3
            ? .startOver(.changed) : .fail("its responses state different dates or digests for one version")))
      #expect(machine.count == 0)
    }
  }

  @Test("a response of another version contradicts nothing", arguments: contradictions.filter { $0.0 != 200 })
  func changedAgain(_ contradiction: (status: Int, length: String?, range: String?, reason: String)) {
    var machine = DownloadStateMachine()
    for number in 1...6 {
      _ = machine.begin()
      let fields = [("ETag", "\"\(number)\""), ("Content-Length", "1\(number)")]
      _ = machine.answered(HTTPResponse(200, fields))
      _ = machine.received(4)
      _ = machine.ended(isWhole: false)
      _ = machine.begin()
      // Of the next version, from a server that ignores If-Range.
      let range = contradiction.range.map { [("Content-Range", $0.replacing("N", with: "4"))] } ?? []
      let answer = machine.answered(HTTPResponse(contradiction.status, [("ETag", "\"\(number + 1)\"")] + range))
      #expect(answer == .startOver(contradiction.status == 412 ? .changed : .range))
      #expect(machine.count == 0 && machine.begin().all.isEmpty)
    }
  }

  @Test(
    "a response that no request of the client asked for is not valid, and another coding is not either",
    arguments: [
      (0, 206, ["Content-Range": "bytes 0-9/10"], "it answered 206 to a request without a range"),
      (0, 412, [:], "it answered 412 to a request without a range or a condition"),
      (0, 416, ["Content-Range": "bytes */0"], "it answered 416 to a request without a range or a condition"),
      (
        0, 200, ["Content-Encoding": "gzip"],
        "its response has Content-Encoding: gzip, although the request accepts none"
      ),
      (
        4, 206, ["Content-Range": "bytes 4-9/10", "Content-Encoding": "br"],
        "its response has Content-Encoding: br, although the request accepts none"
      ),
      (0, 200, ["Content-Encoding": "Identity"], nil), (0, 200, ["Transfer-Encoding": "chunked"], nil),
      (0, 200, ["Transfer-Encoding": "gzip"], "its Transfer-Encoding is not chunked: gzip"),
      (0, 200, ["Content-Length": "1:"], "its Content-Length is not a number: 1:"),
      (0, 200, ["Content-Length": "/1"], "its Content-Length is not a number: /1"),
      (0, 200, ["Content-Length": "0987654321"], nil),
    ] as [(Int, Int, [String: String], String?)])
  func notAsked(_ count: Int, _ status: Int, _ fields: [String: String], _ words: String?) {
    var machine = count > 0 ? interrupted(count, length: 10) : DownloadStateMachine()
    if count == 0 { _ = machine.begin() }
    let before = machine
    let answer = machine.answered(HTTPResponse(status, fields.map { ($0.key, $0.value) }))
    #expect(answer == (words.map { .broken($0) } ?? .content(from: 0, reason: nil)))
    #expect(words == nil || machine == before, "it changes nothing")
    if let text = fields["Content-Length"], words == nil { #expect(machine.length == UInt64(text)) }
  }

  @Test("a response without the version of the existing bytes probably comes from another server, unless it is partial")
  func doubtful() {
    let fields =
      [
        [], [("ETag", "\"a\"")], [("ETag", "W/\"b\"")], [("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")],
      ] as [[(String, String)]]
    for validator in [nil, "\"a\"", "Sun, 06 Nov 1994 08:49:37 GMT"] as [String?] {
      for count in [0, 4] as [UInt64] {
        var machine = DownloadStateMachine()
        if let validator {
          machine = DownloadStateMachine(
            resuming: DownloadResumeData(path: "p", inode: 1, byteCount: count, validator: validator, length: nil))
        }
        let range = machine.begin()
        #expect(range.all.isEmpty == (validator == nil || count == 0))
        for (number, names) in fields.enumerated() {
          let isDoubtful = machine.isDoubtful(HTTPResponse(200, names))
          let lacksTag = number == 0 || number == 3
          let isExpected = !range.all.isEmpty && (validator == "\"a\"" ? lacksTag : number == 0)
          #expect(isDoubtful == isExpected, "\(validator ?? "none"), \(count), \(names)")
          for status in [199, 201, 206, 412, 416] { #expect(!machine.isDoubtful(HTTPResponse(status, names))) }
        }
      }
    }
  }

  @Test(
    "a server that accepts no ranges is not asked for one",
    arguments: [("none", false), ("None", false), ("bytes", true), (nil, true)] as [(String?, Bool)])
  func acceptedRanges(_ value: String?, _ isContinued: Bool) {
    var machine = DownloadStateMachine()
    _ = machine.begin()
    let fields = [("ETag", "\"a\"")] + (value.map { [("Accept-Ranges", $0)] } ?? [])
    let answer = machine.answered(HTTPResponse(200, fields))
    let isTaken = machine.received(4)
    #expect(answer == .content(from: 0, reason: nil) && isTaken)
    #expect(machine.validator == (isContinued ? "\"a\"" : nil) && machine.isResumable == isContinued)
    let next = machine.begin()
    #expect(next["Range"] == (isContinued ? "bytes=4-" : nil) && next["If-Range"] == (isContinued ? "\"a\"" : nil))
    #expect(machine.count == (isContinued ? 4 : 0))
  }

  @Test(
    "only a response whose content ends with its connection may have been cut off when its end seems proper",
    arguments: [
      (.http10, [], true), (.http11, [], true), (.http2, [], false), (.http11, [("Content-Length", "4")], false),
      (.http11, [("Transfer-Encoding", "chunked")], false), (.http11, [("Accept-Ranges", "none")], true),
      (.http2, [("Accept-Ranges", "none")], false),
    ] as [(HTTPResponse.Version, [(String, String)], Bool)])
  func ends(_ version: HTTPResponse.Version, _ fields: [(String, String)], mayBeCutOff: Bool) {
    var machine = DownloadStateMachine()
    _ = machine.begin()
    var response = HTTPResponse(200, [("ETag", "\"a\"")] + fields)
    response.version = version
    _ = machine.answered(response)
    let isTaken = machine.received(4)
    #expect(isTaken && machine.ended(isWhole: true) == .complete)
    let mismatch = machine.mismatched()
    #expect((mismatch != .wrong) == mayBeCutOff, "\(mismatch)")
  }

  @Test(
    "the third mismatch of a resource that changes while it is sent ends the download, however it starts over",
    arguments: [200, 412, 416], [[1, 2, 3], [3, 2, 1], [2, 2, 2]])
  func changes(_ status: Int, counts: [Int]) {
    var machine = DownloadStateMachine()
    var mismatches: [DownloadStateMachine.Mismatch] = []
    _ = machine.begin()
    for (number, count) in counts.enumerated() {
      _ = machine.answered(HTTPResponse(200, [("ETag", "\"\(number)\"")]))
      let isTaken = machine.received(count)
      #expect(isTaken && machine.ended(isWhole: true) == .complete)
      mismatches.append(machine.mismatched())
      let range = machine.begin()
      #expect(range["Range"] == "bytes=\(count)-")
      guard status != 200 else { continue }
      let answer = machine.answered(HTTPResponse(status, []))
      #expect(answer == .startOver(status == 416 ? .range : .changed))
      _ = machine.begin()
    }
    #expect(mismatches == [.mayLackRest, .mayLackRest, .changes(3)])
  }

  @Test("each step of a download from three responses has the exact effect")
  func steps() {
    var machine = DownloadStateMachine()
    #expect(machine.begin().all.isEmpty && machine.count == 0 && !machine.isResumable && !machine.reachesEnd)
    let whole = HTTPResponse(200, [("ETag", "\"a\""), ("Content-Length", "10"), ("Repr-Digest", "sha-256=:AA==:")])
    var answer = machine.answered(whole)
    #expect(answer == .content(from: 0, reason: nil) && machine.digest == "sha-256=:AA==:" && machine.reachesEnd)
    #expect(!machine.isResumable, "there are no bytes")
    var isTaken = machine.received(3)
    #expect(isTaken && machine.count == 3 && machine.isResumable)
    #expect(machine.ended(isWhole: true) == .broken && machine.ended(isWhole: false) == .broken)
    let range = machine.begin()
    #expect(range["Range"] == "bytes=3-" && range["If-Range"] == "\"a\"" && !machine.reachesEnd)
    #expect(machine.ended(isWhole: true) == .broken, "there is no response")
    answer = machine.answered(part("bytes 3-6/10"))
    #expect(answer == .content(from: 3, reason: nil) && !machine.reachesEnd && machine.length == 10)
    isTaken = machine.received(3)
    #expect(isTaken && machine.ended(isWhole: true) == .broken)
    isTaken = machine.received(1)
    #expect(isTaken && machine.ended(isWhole: true) == .goOn && machine.ended(isWhole: false) == .broken)
    #expect(machine.begin()["Range"] == "bytes=7-")
    answer = machine.answered(part("bytes 7-9/*"))
    #expect(answer == .content(from: 7, reason: nil) && machine.reachesEnd && machine.digest == "sha-256=:AA==:")
    isTaken = machine.received(3)
    #expect(isTaken && machine.ended(isWhole: true) == .complete && machine.ended(isWhole: false) == .broken)
    machine.lost(from: 11)
    #expect(machine.count == 10)
    machine.lost(from: 9)
    #expect(machine.count == 9)
    isTaken = machine.received(2)
    #expect(!isTaken && machine == DownloadStateMachine())
  }

  @Test("a part of unknown total length is followed by a request for the rest, whose 416 states the length")
  func unknownTotal() {
    var machine = interrupted(4, length: nil)
    var answer = machine.answered(part("bytes 4-5/*"))
    let isTaken = machine.received(2)
    #expect(answer == .content(from: 4, reason: nil) && isTaken && machine.length == nil)
    #expect(machine.ended(isWhole: true) == .goOn && machine.begin()["Range"] == "bytes=6-")
    let fields = [("ETag", "\"a\""), ("Content-Range", "bytes */6"), ("Repr-Digest", "sha-256=:AA==:")]
    answer = machine.answered(HTTPResponse(416, fields))
    #expect(answer == .complete && machine.length == 6 && machine.count == 6 && machine.digest == "sha-256=:AA==:")
  }
}

extension HTTPResponse {
  fileprivate init(_ status: Int, _ fields: [(String, String)]) {
    self.init(status: status, fields: HeaderFields(received: fields.map { (name: $0.0, value: $0.1) }))
  }
}
