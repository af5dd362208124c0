// Faults of the microphone, or of the process that reads it. The stored data still has the correct time.

import CommandTesting
import Glibc
import NetworkTesting
import TestDeviceControl
import TestRigs
import Testing

@Suite("A microphone with faults")
struct CaptureFaultTests {
  private let second = 96_000
  private let microphone = TestMicrophone()
  private let scratch = ScratchDirectory()

  @Test(
    "stopped for 3 s and continued: a device with a larger ring loses nothing, and a smaller ring loses an exact number of frames",
    arguments: ["5s", "500ms"])
  func stopped(deviceBuffer: String) throws {
    let server = try ServeProcess(scratch.path)
    let client = try StreamProcess(microphone: microphone, to: server.url, deviceBuffer: deviceBuffer)
    try client.acknowledged(second)
    client.pause(for: .seconds(3))
    try client.acknowledged(client.captured + 4 * second)
    let summary = try client.finish()
    let ended = try server.event("ended")

    let gaps = microphone.gaps.filter { $0.lowerBound < UInt64((summary.integer("captured") ?? 0) / 2) }
    let lost = gaps.reduce(0) { $0 + $1.count }
    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    // Every frame is at its own number, with silence for exactly those that the device had to overwrite.
    #expect(stored.firstDifferenceFromMicrophone(silent: gaps) == nil)
    #expect(stored.holes.isEmpty)
    #expect(summary.integer("source_lost_frames") == lost)
    let overruns = client.events("overrun")
    #expect(overruns.reduce(0) { $0 + ($1.integer("lost_frames") ?? 0) } == lost)
    #expect(overruns.reduce(0) { $0 + ($1.integer("filled_bytes") ?? 0) } == 2 * lost)
    #expect(testmic_frames_overwritten(microphone.page) == 0)
    #expect(summary.integer("captured") == stored.bytes.count)
    #expect(stored.frameCount >= 5 * 48_000)
    // It did not run: it reports its progress every second, and once did not for three.
    let told = client.events("progress").compactMap { $0.thousandths("elapsed_seconds") }
    #expect(zip(told.dropFirst(), told).contains { $0 - $1 >= 3000 })
    if deviceBuffer == "5s" {
      #expect(lost == 0)
    } else {
      // 3 s minus the half second that the device buffers.
      #expect(lost >= 2 * 48_000 && lost <= 4 * 48_000)
    }
  }

  @Test(
    "stopped for longer than the buffer while the server hangs: the earlier captured frames are stored")
  func stoppedForLong() throws {
    let server = try ServeProcess(scratch.path)
    let client = try StreamProcess(
      microphone: microphone, to: server.url, deviceBuffer: "200ms",
      more: ["--buffer", "1s", "--resumable", "always"])
    try client.acknowledged(second)
    server.signal(SIGSTOP)
    let captured = client.captured
    try client.event("progress") { ($0.integer("captured") ?? 0) >= captured + second / 2 }
    // Half a second of audio is not acknowledged, and three seconds of silence would displace it.
    client.pause(for: .seconds(3))
    server.signal(SIGCONT)
    try client.acknowledged(client.captured + 3 * second)
    let summary = try client.finish()
    let ended = try server.event("ended")

    let gaps = microphone.gaps.filter { $0.lowerBound < UInt64((summary.integer("captured") ?? 0) / 2) }
    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    #expect(stored.firstDifferenceFromMicrophone(silent: gaps) == nil)
    // The last frame of the silence is written, so that the stream continues after the gap in any case.
    #expect(
      stored.holes.map {
        ($0.lowerBound - MicrophoneStream.headerLength) / 2..<($0.upperBound - MicrophoneStream.headerLength) / 2
      }
        == gaps.map { Int($0.lowerBound)..<Int($0.upperBound) - 1 })
    #expect(summary.integer("lost") == 0)
    #expect(summary.integer("source_lost_frames") == gaps.reduce(0) { $0 + $1.count })
    #expect(summary.integer("captured") == stored.bytes.count)
    #expect(client.events("new-part").map { $0.text("reason") } == ["pause"])
  }

  @Test("a sound server that no longer answers does not keep the process from ending")
  func silentSoundServer() throws {
    let sound = try PrivatePulseAudio()
    let server = try ServeProcess(scratch.path)
    let client = try StreamProcess("mic", server.url, more: ["--device", sound.captureName, "--finish-timeout", "1s"])
    try client.acknowledged(second)
    sound.signal(SIGSTOP)
    // Reported before the device is opened again, which hangs.
    try client.event("device-lost")
    client.signal(SIGINT)
    #expect(try client.ended(code: 69).integer("acknowledged") ?? 0 >= second)
    sound.signal(SIGCONT)
  }

  @Test("overrun, unplugged, plugged in again, overrun again: every frame in the stored file is at its time")
  func unplugged() throws {
    let server = try ServeProcess(scratch.path)
    let client = try StreamProcess(microphone: microphone, to: server.url, deviceBuffer: "500ms")
    try client.acknowledged(second)
    testmic_order_overrun(microphone.page, 300)
    try client.event("overrun")
    try client.acknowledged(client.captured + second)
    testmic_set_absent(microphone.page, true)
    let gone = try client.event("device-lost")
    // Listeners receive silence in real time while the device is away.
    try client.acknowledged(client.captured + second)
    testmic_set_absent(microphone.page, false)
    let back = try client.event("device-returned")
    try client.acknowledged(client.captured + second)
    testmic_order_overrun(microphone.page, 100)
    try client.output.wait(for: "the second overrun") { events, _ in
      events.filter { $0.event == "overrun" }.count == 2 ? () : nil
    }
    try client.acknowledged(client.captured + second)
    let summary = try client.finish()
    let ended = try server.event("ended")

    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    #expect(stored.holes.isEmpty)
    #expect(summary.integer("captured") == stored.bytes.count)
    let told = [client.events("overrun")[0], back, client.events("overrun")[1]]
    let silences = told.map { event in
      let start = ((event.integer("offset") ?? 0) - MicrophoneStream.headerLength) / 2
      return start..<start + (event.integer("lost_frames") ?? 0)
    }
    #expect(gone.integer("offset") == back.integer("offset"))
    for event in told { #expect(event.integer("filled_bytes") == 2 * (event.integer("lost_frames") ?? -1)) }
    // A reopened device is positioned by the clock, with a precision of two frames, 42 µs.
    let timeline = try Timeline(stored, silences: silences)
    #expect(timeline.shifts.count == 4)
    #expect(timeline.shifts.prefix(2).allSatisfy { $0 == 0 })
    #expect(timeline.shifts.allSatisfy { abs($0) <= 2 }, "\(timeline.shifts)")
    let lost = silences.reduce(0) { $0 + $1.count }
    #expect(summary.integer("source_lost_frames") == lost)
    #expect(abs(lost - Int(microphone.framesLost)) <= 2)
    #expect(silences[1].count >= 48_000)
  }

  /// The distance of the device's frames from their position between the given silences. Throws if anything else is
  /// stored.
  private struct Timeline {
    private(set) var shifts: [Int] = []

    init(_ stored: StoredStream, silences: [Range<Int>]) throws {
      let samples = stored.bytes.dropFirst(MicrophoneStream.headerLength).withUnsafeBytes {
        Array($0.bindMemory(to: Int16.self))
      }
      var at = 0
      for silence in silences + [samples.count..<samples.count] {
        guard at < silence.lowerBound, silence.upperBound <= samples.count else {
          throw TestFailure("silences \(silences) in \(samples.count) frames")
        }
        let sound = at..<silence.lowerBound
        guard let shift = (-1000...1000).first(where: { Self.isNoise(samples, sound, shift: $0) }) else {
          throw TestFailure("frames \(sound) are not the microphone's")
        }
        shifts.append(shift)
        guard samples[silence].allSatisfy({ $0 == 0 }) else { throw TestFailure("frames \(silence) are not silent") }
        at = silence.upperBound
      }
    }

    private static func isNoise(_ samples: [Int16], _ frames: Range<Int>, shift: Int) -> Bool {
      frames.lowerBound + shift >= 0 && frames.allSatisfy { samples[$0] == testmic_sample(1, UInt64($0 + shift), 0) }
    }
  }
}
