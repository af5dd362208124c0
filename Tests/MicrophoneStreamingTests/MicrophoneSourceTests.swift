// How a microphone's events are reported, for any numbers in them.

import PropertyTesting
import Testing

@testable import AudioCapture
@testable import LiveStreaming
@testable import MicrophoneStreaming

@Suite("Reports of a microphone")
struct MicrophoneSourceTests {
  private let format = CaptureFormat(
    rate: 48_000, channels: 8, format: .s32LE, periodFrames: 480, bufferFrames: 24_000, countsThroughOverruns: true)

  @Test("a device that returns after 60 hours is reported with its 60 hours")
  func hours() throws {
    let frames: UInt64 = 60 * 3600 * 48_000
    let event = try #require(
      MicrophoneSource.describe(
        .deviceReturned(streamOffset: 32, framesLost: frames, filled: true, attempts: 9), format))
    #expect(event.kind == "device-returned" && event.lost == frames && event.filled == frames * 32)
    #expect(event.description.contains("(216000000 ms)"))
  }

  @Test("a device that returns without the rate of the stream is reported with both rates")
  func otherRate() throws {
    let event = try #require(
      MicrophoneSource.describe(.deviceRefused(streamOffset: 32, reason: .rate(nearest: 44_100)), format))
    #expect(event.kind == "device-refused" && event.isTrouble && event.offset == 32 && event.lost == 0)
    #expect(event.description.contains("48000 Hz") && event.description.contains("44100 Hz"))
  }

  @Test("the start of the capture is not a problem, but a loss is", arguments: [true, false])
  func trouble(_ isFilled: Bool) throws {
    for priority in [CaptureEvent.RealTime.granted(priority: 9), .refused(code: 1), .notRequested] {
      let event = try #require(MicrophoneSource.describe(.started(realTime: priority), format))
      #expect(!event.isTrouble && event.lost == 0, "\(event.description)")
    }
    for event in [
      CaptureEvent.overrun(streamOffset: 0, framesLost: 1, filled: isFilled),
      .suspended(streamOffset: 0, framesLost: 1, filled: isFilled),
      .deviceReturned(streamOffset: 0, framesLost: 1, filled: isFilled, attempts: 1),
    ] {
      #expect(MicrophoneSource.describe(event, format)?.isTrouble == true)
    }
  }

  @Test("each problem is reported with its kind, position and loss, and the end of the capture is not reported")
  func kinds() throws {
    for (event, kind, lost) in [
      (.overrun(streamOffset: 32, framesLost: 2, filled: false), "overrun", 2),
      (.suspended(streamOffset: 32, framesLost: 3, filled: false), "suspend", 3),
      (.deviceLost(streamOffset: 32, code: 19), "device-lost", 0), (.bufferFull(streamOffset: 32), "full", 0),
    ] as [(CaptureEvent, String, UInt64)] {
      let told = try #require(MicrophoneSource.describe(event, format))
      #expect(told.kind == kind && told.isTrouble)
      #expect(told.offset == 32 && told.lost == lost && told.filled == 0, "\(kind)")
    }
    for event in [CaptureEvent.stopped(frames: 1), .failed(operation: "read", code: 5)] {
      #expect(MicrophoneSource.describe(event, format) == nil)
    }
  }

  @Test("no number ends the process", arguments: Seed.several(3))
  func extremes(seed: Seed) {
    var random = seed.generator
    for _ in 0..<1_000 {
      let frames = random.chance(30) ? UInt64.max : random.next() >> UInt64(Int.random(in: 0..<64, using: &random))
      let offset = random.chance(30) ? UInt64.max : random.next()
      for event in [
        CaptureEvent.overrun(streamOffset: offset, framesLost: frames, filled: true),
        .suspended(streamOffset: offset, framesLost: frames, filled: false),
        .deviceReturned(streamOffset: offset, framesLost: frames, filled: true, attempts: .max),
      ] {
        #expect(MicrophoneSource.describe(event, format)?.lost == frames)
      }
    }
  }
}
