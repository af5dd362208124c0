// What a microphone's stream reports about losses without an event of their own.

import Testing

@testable import AudioCapture
@testable import LiveStreaming
@testable import MicrophoneStreaming

@Suite("Losses without an event")
struct MissedEventTests {
  private let format = CaptureFormat(
    rate: 8000, channels: 1, format: .s16LE, periodFrames: 80, bufferFrames: 800, countsThroughOverruns: true)

  @Test("events that were too frequent are reported with position, number of lost frames, and range")
  func missed() throws {
    let told = try #require(
      MicrophoneSource.describe(
        .missed(events: 7, streamOffset: 1000, byteCount: 96_000, framesLost: 16_000, filled: true), format))
    #expect(told.kind == "events-missed" && told.isTrouble)
    #expect((told.offset, told.lost, told.filled, told.length) == (1000, 16_000, 32_000, 96_000))
    #expect(told.description.hasPrefix("7 more events were too frequent to be reported: 16000 frames lost (2000 ms)"))
  }

  @Test("a device that never returned is a loss from the moment when it disappeared")
  func neverReturned() throws {
    for filled in [false, true] {
      let told = try #require(
        MicrophoneSource.describe(.neverReturned(streamOffset: 44, framesLost: 8000, filled: filled), format))
      #expect(told.kind == "device-never-returned" && told.isTrouble)
      #expect((told.offset, told.lost, told.filled, told.length) == (44, 8000, filled ? 16_000 : 0, 0))
    }
  }
}
