// Tests the fields in the answers of an upload resource, for each version.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The responses of a server")
struct ServerAnswerTests {
  private var limits: UploadLimits {
    var limits = UploadLimits()
    (limits.maximumSize, limits.maximumAge) = (100, 60)
    return limits
  }

  private func standing(isComplete: Bool = false) -> ServerAnswer.Standing {
    ServerAnswer.Standing(offset: 5, length: 9, isComplete: isComplete, limits: limits, location: "/u/1")
  }

  @Test(
    "the server sends no 104 for a request without a version (draft, section Draft Version Identification)",
    arguments: InteropVersion.drafts)
  func announcements(_ version: InteropVersion) throws {
    #expect(ServerAnswer.announcement(standing(), .none) == nil)
    #expect(ServerAnswer.progress(5, .none) == nil)
    let fields = try #require(ServerAnswer.announcement(standing(), version))
    #expect(fields["Upload-Draft-Interop-Version"] == version.number.map(String.init))
    // A 104 MUST include Location, and Upload-Limit with the limits (section Upload Creation).
    #expect(fields["Location"] == "/u/1")
    #expect(fields.contains("Upload-Limit") == version.hasLimits)
  }

  @Test(
    "the server reports progress with Upload-Offset and without Location (draft, section Upload Append), and only from version 5 on"
  )
  func progress() throws {
    for version in InteropVersion.drafts {
      let fields = ServerAnswer.progress(7, version)
      #expect((fields != nil) == ((version.number ?? 0) >= 5))
      guard let fields else { continue }
      #expect(fields["Upload-Offset"] == "7" && !fields.contains("Location"))
      #expect(fields["Upload-Draft-Interop-Version"] == version.number.map(String.init))
    }
  }

  @Test("version 6 names the lifetime expires, later ones max-age, and earlier ones have no limits")
  func lifetime() {
    let expected = [8: "max-age=60", 7: "max-age=60", 6: "expires=60"]
    for version in InteropVersion.drafts {
      let field = ServerAnswer.created(standing(), version).fields["Upload-Limit"]
      #expect(field == version.number.flatMap { expected[$0] }.map { "max-size=100, \($0)" })
    }
  }

  @Test("each version reports completeness in its own way (draft, section Completeness)")
  func completeness() {
    for version in InteropVersion.drafts {
      let fields = ServerAnswer.completedFields(version, offset: 5)
      #expect(fields["Upload-Complete"] == (version.number == 3 ? nil : "?1"))
      #expect(fields["Upload-Incomplete"] == (version.number == 3 ? "?0" : nil))
      #expect(fields["Upload-Draft-Interop-Version"] == version.number.map(String.init))
      let refused = ServerAnswer.refused(.mismatchingOffset(expected: 5, provided: 6), version, limits: limits)
      #expect(version.completeness(refused.fields) == false)
    }
  }

  @Test("the response to HEAD has offset, completeness, length, limits, and no-store (draft, section Offset Retrieval)")
  func retrieved() {
    let fields = ServerAnswer.retrieved(standing(), .newest).fields
    #expect(fields["Upload-Offset"] == "5" && fields["Upload-Complete"] == "?0" && fields["Upload-Length"] == "9")
    #expect(fields["Upload-Limit"] == "max-size=100, max-age=60" && fields["Cache-Control"] == "no-store")
    #expect(ServerAnswer.retrieved(standing(isComplete: true), .newest).fields["Upload-Complete"] == "?1")
  }

  @Test("without limits, the response to OPTIONS has min-size=0 (draft, section Limits)")
  func noLimits() {
    let answer = ServerAnswer.discovered(UploadLimits(), .newest, allow: "POST")
    #expect(answer.fields["Upload-Limit"] == "min-size=0" && answer.fields["Allow"] == "POST")
    // A client that names no version learns the newest.
    for version in [InteropVersion.none] + InteropVersion.drafts {
      let answer = ServerAnswer.discovered(UploadLimits(), version, allow: "POST")
      #expect(answer.fields[InteropVersion.fieldName] == "\(version.number ?? 8)")
    }
  }

  @Test("the response to OPTIONS of an upload resource has its methods, the type of an append, and the version")
  func resourceOptions() {
    for version in [InteropVersion.none] + InteropVersion.drafts {
      let answer = ServerAnswer.discoveredResource(version)
      #expect(answer.status == 204 && answer.fields["Allow"] == "HEAD, GET, PATCH, DELETE, OPTIONS")
      #expect(answer.fields["Accept-Patch"] == "application/partial-upload")
      #expect(answer.fields["Upload-Draft-Interop-Version"] == version.number.map(String.init))
    }
  }

  @Test("the response to a wrong offset is a problem with both offsets (draft, section Mismatching Offset)")
  func mismatchingOffset() {
    let answer = ServerAnswer.refused(
      .mismatchingOffset(expected: 5, provided: 9), .newest, limits: limits, standing: standing())
    #expect(answer.status == 409 && answer.mediaType == "application/problem+json")
    #expect(answer.fields["Upload-Offset"] == "5" && answer.fields["Upload-Complete"] == "?0")
    #expect(
      answer.body == "{\"type\":\"https://iana.org/assignments/http-problem-types#mismatching-upload-offset\","
        + "\"title\":\"Mismatching Upload Offset\",\"status\":409,\"expected-offset\":5,\"provided-offset\":9}\n")
  }

  @Test("the response to inconsistent lengths is a problem (draft, section Inconsistent Length)")
  func inconsistentLength() {
    let answer = ServerAnswer.refused(.inconsistentLength, .newest, limits: limits)
    #expect(answer.status == 400 && answer.mediaType == "application/problem+json")
    #expect(answer.body.contains("#inconsistent-upload-length\""))
  }

  @Test(
    "the response to an append to a complete upload is not its target's, and a problem where the draft has one (draft, sections Completeness, Upload Append)",
    arguments: [InteropVersion.none] + InteropVersion.drafts)
  func completedUpload(_ version: InteropVersion) {
    let answer = ServerAnswer.refused(.completed, version, limits: limits, standing: standing(isComplete: true))
    #expect(answer.status == (version.number == 6 ? 400 : 409))
    // With a true value, this would be the final response of the upload.
    #expect(version.completeness(answer.fields) == false && answer.fields["Upload-Offset"] == "5")
    guard let number = version.number, number >= 6 else {
      #expect(answer.mediaType == "text/plain" && answer.body.contains("complete"))
      return
    }
    #expect(answer.mediaType == "application/problem+json")
    #expect(
      answer.body == "{\"type\":\"https://iana.org/assignments/http-problem-types#completed-upload\","
        + "\"title\":\"Upload Is Completed\",\"status\":\(answer.status)}\n")
  }

  @Test("a 413 contains the limits (draft, section Limits)")
  func tooLarge() {
    for refusal in [UploadRefusal.representationTooLarge, .contentTooLarge] {
      let answer = ServerAnswer.refused(refusal, .newest, limits: limits)
      #expect(answer.status == 413 && answer.fields["Upload-Limit"] == "max-size=100, max-age=60")
    }
  }

  @Test("a response that allows a retry has its time, and one for a method or a type has the valid values")
  func remedies() {
    for refusal in [UploadRefusal.quotaExhausted, .tooManyUploads, .serverStops, .notStored("full", isFull: true)] {
      #expect(ServerAnswer.refused(refusal, .newest, limits: limits).fields["Retry-After"] == "2")
    }
    #expect(
      ServerAnswer.refused(.methodNotAllowed, .newest, limits: limits).fields["Allow"]
        == "HEAD, GET, PATCH, DELETE, OPTIONS")
    #expect(
      ServerAnswer.refused(.mediaType, .newest, limits: limits).fields["Accept-Patch"] == "application/partial-upload")
    #expect(
      ServerAnswer.refused(.unsupportedVersion, .newest, limits: limits).fields["Upload-Draft-Interop-Version"] == "8")
  }

  @Test(
    "a client that asks for a longer interval gets fewer announcements, and no client gets more than the usual ones",
    arguments: [("0", 1), ("1", 5), ("3", 15), ("60", 300), ("1000000", 300), ("-1", 1), ("1.5", 1), ("a", 1)])
  func longerInterval(_ text: String, _ factor: Int64) throws {
    let interval = UploadFields.progressInterval([UploadFields.progressInterval: text])
    for limit in [nil, 100] {
      var schedule = ProgressSchedule(limit: limit, interval: interval)
      #expect(schedule.accepted(now: 0) == .announce)
      #expect(schedule.kept(100, now: 1) == .announce)
      #expect(schedule.kept(100, now: 2) == .setTimer(at: 1 + factor * ProgressSchedule.interval))
    }
    // A fast client still has its bytes acknowledged.
    var schedule = ProgressSchedule(interval: interval)
    #expect(schedule.kept(1, now: 0) == .announce && schedule.kept(ProgressSchedule.step, now: 1) == .announce)
  }

  @Test("progress is announced at once at the beginning and then four times per second, and always at the end")
  func schedule() {
    var schedule = ProgressSchedule()
    let step = ProgressSchedule.interval / 10
    #expect(schedule.accepted(now: 0) == .announce)
    #expect(schedule.kept(100, now: 1) == .announce)
    // A stream of pieces: only one timer runs at a time, and each time it fires, an offset is announced.
    var announcements = 0
    var timer: Int64?
    for now in stride(from: 2, through: 40 * step, by: Int64.Stride(step)) {
      if let due = timer, due <= now {
        #expect(schedule.timerFired(now: now) == .announce)
        announcements += 1
        timer = nil
      }
      switch schedule.kept(100, now: now) {
      case .announce: announcements += 1
      case .setTimer(let time):
        #expect(timer == nil)
        timer = time
      case .nothing: #expect(timer != nil)
      }
    }
    #expect((3...5).contains(announcements))
    // The remaining timer announces the last bytes.
    #expect(timer != nil)
  }

  @Test("a fast transfer receives a 104 for every two megabytes at first, and fewer as it grows")
  func fastSchedule() {
    var schedule = ProgressSchedule()
    #expect(schedule.accepted(now: 0) == .announce)
    var (announcements, announced, furthestBehind): (Int, UInt64, UInt64) = (0, 0, 0)
    // 256 KiB at a time and without delay, so no timer ever fires.
    for kept in stride(from: 256 << 10, through: 10 << 30, by: 256 << 10) {
      if schedule.kept(256 << 10, now: 1) == .announce {
        announcements += 1
        announced = UInt64(kept)
      }
      if kept <= 256 << 20 { furthestBehind = max(furthestBehind, UInt64(kept) - announced) }
    }
    #expect(furthestBehind < ProgressSchedule.step)
    // The bound follows from libcurl's limit of 300 KB, at about a hundred bytes per response.
    #expect((500...700).contains(announcements))
  }

  @Test("with a limit, the number of announcements is limited, with growing distances, for any amount and time")
  func limitedSchedule() {
    for limit in 0...6 {
      var schedule = ProgressSchedule(limit: limit)
      var announced: [Int64] = []
      var timer: Int64?
      if schedule.accepted(now: 0) == .announce { announced.append(0) }
      for now in stride(from: Int64(1), to: 20_000 * ProgressSchedule.interval, by: 25_000_000) {
        if let due = timer, due <= now {
          timer = nil
          if schedule.timerFired(now: now) == .announce { announced.append(now) }
        }
        let action = schedule.kept(1 << 20, now: now)
        // No timer runs when no further announcement is allowed.
        if announced.count == limit, timer == nil { #expect(action == .nothing) }
        switch action {
        case .announce: announced.append(now)
        case .setTimer(let time): timer = time
        case .nothing: break
        }
      }
      #expect(announced.count == limit)
      let distances = zip(announced.dropFirst(2), announced.dropFirst()).map { $0 - $1 }
      #expect(zip(distances.dropFirst(), distances).allSatisfy { $0 > 4 * $1 })
      #expect(distances.first.map { $0 >= ProgressSchedule.interval } != false)
    }
  }

  @Test("with a limit, the first announcements follow after 0.2 s, 1.6 s, 12.8 s and so on, up to 39 days")
  func limitedDistances() {
    var schedule = ProgressSchedule(limit: 100)
    #expect(schedule.accepted(now: 0) == .announce && schedule.kept(1, now: 0) == .announce)
    var last: Int64 = 0
    for number in 0..<12 {
      let due = last + ProgressSchedule.interval << (3 * Int64(min(number, 8)))
      #expect(schedule.kept(1 << 30, now: due - 1) == .setTimer(at: due), "\(number)")
      #expect(schedule.timerFired(now: due) == .announce)
      last = due
    }
  }

  @Test("bytes are announced at the end of the interval, or once they are a 128th of the transfer")
  func exactSchedule() {
    var schedule = ProgressSchedule()
    #expect(schedule.kept(100, now: 7) == .announce)
    #expect(schedule.kept(1, now: 6 + ProgressSchedule.interval) == .setTimer(at: 7 + ProgressSchedule.interval))
    #expect(schedule.kept(1, now: 7 + ProgressSchedule.interval) == .announce)
    for (more, isAnnounced) in [(4 << 20, true), ((4 << 20) - 1, false)] as [(UInt64, Bool)] {
      schedule = ProgressSchedule()
      #expect(schedule.kept((512 << 20) - more, now: 0) == .announce)
      #expect((schedule.kept(more, now: 1) == .announce) == isAnnounced)
    }
  }
}
