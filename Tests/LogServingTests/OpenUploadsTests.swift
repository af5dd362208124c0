// What two servers know of the uploads of a log, at any moment and when they have read all of it, against the log.

import PropertyTesting
import ResumableUploads
import StreamServing
import Testing

@testable import LogServing

@Suite("Open uploads")
struct OpenUploadsTests {
  /// An upload as the log has it.
  private struct Upload {
    var token: String
    var owner: [UInt8]?
    var messages: [(entry: LogEntry, sequence: UInt64)] = []
    var last: LogEntry? { messages.last?.entry }
  }

  private struct Request {
    var token: String
    var isCreation: Bool
    /// Accepted and not in the log.
    var waiting: UInt64 = 0
    var sequence: UInt64 = 0
    var end: UInt64
    var isOver = false
    var epoch: UInt64
  }

  private struct Server {
    var uploads: OpenUploads
    var requests: [Request] = []
    /// How much of the log it has read.
    var position = 0
  }

  @Test(
    "two servers count what the log has when they have read it, and each keeps the limits by itself",
    arguments: Seed.several(4))
  func counts(seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<400 {
      var limits = UploadLimitsConfiguration()
      limits.maximumCount = Int.random(in: 1...6, using: &random)
      limits.maximumCountPerClient = random.chance(50) ? Int.random(in: 1...3, using: &random) : nil
      limits.quota = random.chance(70) ? UInt64.random(in: 0...3000, using: &random) : nil
      limits.quotaPerClient = random.chance(50) ? UInt64.random(in: 0...2000, using: &random) : nil
      try run(limits, &random)
    }
  }

  private func run(_ limits: UploadLimitsConfiguration, _ random: inout SplitMix64) throws {
    let lifetimes = UploadLifetimes(sized: .seconds(10), live: .seconds(10))
    var servers = (0..<2).map { _ in Server(uploads: OpenUploads(limits, lifetimes)) }
    var log: [(token: String, entry: LogEntry)] = []
    var uploads: [String: Upload] = [:]
    func publish(_ token: String, _ owner: [UInt8]?, count: UInt64, completes: Bool, ends: Deactivation?) -> UInt64? {
      var upload = uploads[token] ?? Upload(token: token, owner: owner)
      if upload.last?.isOver == true { return nil }
      var entry = LogEntry(
        offset: upload.last?.end ?? 0, count: count, streamID: "s", streamStart: 0, owner: upload.owner,
        mark: .init(publisher: "p", number: 1))
      (entry.isComplete, entry.deactivation) = (completes, ends)
      entry.link = .init(number: UInt64(upload.messages.count + 1), digest: "")
      log.append((token, entry))
      upload.messages.append((entry, UInt64(log.count)))
      uploads[token] = upload
      return UInt64(log.count)
    }
    func read(_ server: inout Server) {
      while server.position < log.count {
        let (token, entry) = log[server.position]
        server.position += 1
        let sequence = UInt64(server.position)
        // As for headers: only the progress of an upload that is known.
        let isKnown =
          !entry.isOver
          && server.uploads.advance(token, to: entry.end, isLive: entry.length == nil, at: sequence, seen: 0)
        if !isKnown { server.uploads.read(entry, of: token, at: sequence, seen: 0) }
      }
    }
    for step in 0..<120 {
      let index = Int.random(in: 0...1, using: &random)
      let open = uploads.values.filter { $0.last?.isOver == false }.sorted { $0.token < $1.token }
      switch Int.random(in: 0..<11, using: &random) {
      case 0, 1:
        let owner: [UInt8]? = random.chance(80) ? [UInt8.random(in: 1...2, using: &random)] : nil
        let (count, room) = (servers[index].uploads.count, servers[index].uploads.room(for: owner))
        let claimed = UInt64.random(in: 0...1500, using: &random)
        let token = "t\(step)"
        do {
          let epoch = try servers[index].uploads.admit(token, of: owner, claiming: claimed, isLive: true, seen: 0)
          #expect(count < limits.maximumCount && claimed <= room)
          uploads[token] = Upload(token: token, owner: owner)
          servers[index].requests.append(Request(token: token, isCreation: true, end: 0, epoch: epoch))
        } catch {
          #expect(error == .tooManyUploads || error == .quotaExhausted && room < max(1, claimed))
        }
      case 2 where !open.isEmpty:
        let upload = open[Int.random(in: 0..<open.count, using: &random)]
        guard let (entry, sequence) = upload.messages.last else { break }
        do {
          let epoch = try servers[index].uploads.enter(upload.token, entry, at: sequence, bringing: 0, seen: 0)
          servers[index].requests.append(
            Request(token: upload.token, isCreation: false, end: entry.end, epoch: epoch))
        } catch { Issue.record("\(error)") }
      case 3...4 where !servers[index].requests.isEmpty:
        let place = Int.random(in: 0..<servers[index].requests.count, using: &random)
        let count = UInt64.random(in: 1...600, using: &random)
        let token = servers[index].requests[place].token
        let room = servers[index].uploads.room(for: uploads[token]?.owner)
        let granted = servers[index].uploads.claim(count, for: token)
        // An upload that is over is stored by nobody, so nobody counts it.
        #expect(granted <= room || uploads[token]?.last?.isOver == true)
        servers[index].requests[place].waiting += granted
      case 5...6 where !servers[index].requests.isEmpty:
        let place = Int.random(in: 0..<servers[index].requests.count, using: &random)
        var request = servers[index].requests[place]
        let completes = random.chance(15)
        let last = uploads[request.token]?.last
        // The broker refuses what does not follow the last message.
        guard last?.end ?? 0 == request.end,
          let sequence = publish(request.token, nil, count: request.waiting, completes: completes, ends: nil)
        else { break }
        (request.sequence, request.end) = (sequence, request.end + request.waiting)
        (request.waiting, request.isOver) = (0, completes)
        servers[index].requests[place] = request
      case 7 where !servers[index].requests.isEmpty:
        let request = servers[index].requests.remove(at: 0)
        servers[index].uploads.leave(
          request.token, at: request.sequence, end: request.end, isOver: request.isOver, seen: 0, epoch: request.epoch)
      case 8 where !open.isEmpty:
        let upload = open[Int.random(in: 0..<open.count, using: &random)]
        guard upload.last != nil,
          let sequence = publish(upload.token, nil, count: 0, completes: false, ends: .cancelled)
        else { break }
        let epoch = servers[index].uploads.epoch
        servers[index].uploads.end(upload.token, at: sequence, epoch: epoch)
      case 9 where !uploads.isEmpty:
        // As for the expiry: one upload's last message, while others before it are unread.
        let tokens = uploads.keys.sorted()
        let token = tokens[Int.random(in: 0..<tokens.count, using: &random)]
        guard let (entry, sequence) = uploads[token]?.messages.last else { break }
        servers[index].uploads.learn(entry, of: token, at: sequence, seen: 0)
      default:
        if random.chance(10) { (servers[index].position, _) = (0, servers[index].uploads.forget()) }
        read(&servers[index])
      }
    }
    for index in 0...1 {
      for request in servers[index].requests {
        servers[index].uploads.leave(
          request.token, at: request.sequence, end: request.end, isOver: request.isOver, seen: 0, epoch: request.epoch)
      }
      read(&servers[index])
      let open = uploads.values.compactMap { $0.last?.isOver == false ? $0.last : nil }
      #expect(servers[index].uploads.count == open.count)
      #expect(servers[index].uploads.bytes == open.reduce(0) { $0 + $1.end })
      for owner in [[1], [2]] as [[UInt8]] {
        let bytes = open.reduce(0) { $0 + ($1.owner == owner ? $1.end : 0) }
        guard let quota = limits.quotaPerClient, limits.quota == nil else { continue }
        #expect(servers[index].uploads.room(for: owner) == quota - min(quota, bytes))
      }
      // Nothing is remembered of what is over.
      #expect(servers[index].uploads.entryCount == open.count)
    }
  }

  // MARK: Lost messages

  /// A message after which an upload has that many bytes.
  private static func entry(to end: UInt64, completes: Bool = false) -> LogEntry {
    var entry = LogEntry(
      offset: 0, count: end, streamID: "s", streamStart: 0, owner: nil, mark: .init(publisher: "p", number: 1))
    (entry.isComplete, entry.link) = (completes, .init(number: 2, digest: ""))
    return entry
  }

  private static var uploads: OpenUploads {
    OpenUploads(UploadLimitsConfiguration(), UploadLifetimes(sized: .seconds(10), live: .seconds(10)))
  }

  @Test("a request that begins to follow an upload learns of the message that was read before")
  func followed() {
    let usage = LogUsage(UploadLimitsConfiguration(), finishAfter: .seconds(60))
    #expect(usage.follow("t", for: "p") { _ in } == 0)
    usage.read(Self.entry(to: 470), of: "t", at: 480)
    #expect(usage.follow("t", for: "p") { _ in } == 480)
    #expect(usage.follow("u", for: "p") { _ in } == 0)
  }

  @Test(
    "a request that was active when the log lost messages leaves no unfinished upload behind",
    arguments: [true, false])
  func activeRequest(endsUpload: Bool) throws {
    var uploads = Self.uploads
    let epoch = try uploads.enter("t", Self.entry(to: 990), at: 999, bringing: 0, seen: 0)
    uploads.forget()
    uploads.read(Self.entry(to: 470), of: "t", at: 480, seen: 0)
    // The message that it has stored at 1000 is lost.
    uploads.leave("t", at: 1000, end: 1000, isOver: endsUpload, seen: 0, epoch: epoch)
    #expect(uploads.count == 1 && uploads.bytes == 470)
    uploads.read(Self.entry(to: 690, completes: true), of: "t", at: 700, seen: 0)
    #expect(uploads.count == 0 && uploads.entryCount == 0 && uploads.bytes == 0)
  }

  @Test("an upload that this server ended with a message that the log lost counts until it is over again")
  func lostEnd() throws {
    var uploads = Self.uploads
    uploads.read(Self.entry(to: 470), of: "t", at: 480, seen: 0)
    let epoch = uploads.epoch
    uploads.forget()
    uploads.read(Self.entry(to: 470), of: "t", at: 480, seen: 0)
    uploads.end("t", at: 1000, epoch: epoch)
    #expect(uploads.count == 1 && uploads.bytes == 470)
    uploads.end("t", at: 481, epoch: uploads.epoch)
    #expect(uploads.count == 0)
  }

  @Test("the last message of an upload replaces a later one that the log lost", arguments: [true, false])
  func outdatedAnswer(isComplete: Bool) throws {
    var uploads = Self.uploads
    // A broker answered just before it lost the message.
    let epoch = try uploads.enter("t", Self.entry(to: 990), at: 1000, bringing: 0, seen: 0)
    uploads.leave("t", at: 0, end: 990, isOver: false, seen: 0, epoch: epoch)
    uploads.correct(Self.entry(to: 690, completes: isComplete), of: "t", at: 700, known: 1000, seen: 0)
    #expect(uploads.count == (isComplete ? 0 : 1) && uploads.bytes == (isComplete ? 0 : 690))
    // What was read after the question stays.
    uploads.read(Self.entry(to: 1500), of: "u", at: 1500, seen: 0)
    uploads.correct(Self.entry(to: 690), of: "u", at: 700, known: 1000, seen: 0)
    #expect(uploads.bytes == (isComplete ? 1500 : 2190))
  }
}
