// Tests sluice mic --test and sluice devices, by which a user checks a microphone before relying on it.

import CommandTesting
import NetworkTesting
import TestDeviceControl
import TestRigs
import Testing

@testable import AudioCapture
@testable import sluice

@Suite("sluice mic --test")
struct MicTestTests {
  @Test("it measures three seconds of each channel, sends nothing, and requires no URL")
  func loud() throws {
    let microphone = TestMicrophone()
    let test = try SluiceProcess(["mic", "--test", "-D", microphone.name(), "--progress", "json"])
    let event = try test.event("test")
    #expect(try test.exitCode() == 0)
    #expect(event.integer("frames") == 3 * 48_000 && event.integer("lost_frames") == 0)
    #expect(event.text("silent") == nil && event.text("device") == microphone.name())
    let lines = try SluiceProcess(["mic", "--test", "-D", microphone.name(), "-d", "200ms", "--progress", "none"])
    #expect(try lines.exitCode() == 0)
    #expect(lines.output.text.contains { $0.hasPrefix("recorded 0.20 s from \"testmic:") })
    #expect(lines.output.text.contains { $0.hasPrefix("  channel 1: peak ") && $0.hasSuffix(" dBFS") })
  }

  @Test("an overrun is reported, and ends it with 4")
  func overrun() throws {
    let microphone = TestMicrophone()
    let test = try SluiceProcess(["mic", "--test", "-D", microphone.name(), "-d", "1s", "--progress", "json"])
    microphone.wait { testmic_frames_delivered($0) > 4_800 }
    testmic_order_overrun(microphone.page, 300)
    let event = try test.event("test")
    #expect(try test.exitCode() == 4)
    #expect(event.integer("lost_frames") == microphone.framesLost.asInt)
  }

  @Test("a device that disappears or does not exist ends it with 66")
  func unplugged() throws {
    let microphone = TestMicrophone()
    let test = try SluiceProcess(["mic", "--test", "-D", microphone.name(), "--progress", "none"])
    microphone.wait { testmic_frames_delivered($0) > 4_800 }
    testmic_set_absent(microphone.page, true)
    #expect(try test.exitCode() == 66)
    #expect(test.output.text.contains { $0.contains("was disconnected") && $0.hasSuffix("Check the cable.") })
    let missing = try SluiceProcess(["mic", "--test", "-D", "hw:CARD=Nobody", "--progress", "none"])
    #expect(try missing.exitCode() == 66)
  }

  @Test("the verdict names the cause and the remedy")
  func verdicts() {
    func last(_ levels: [(peak: Double, rms: Double)], lost: UInt64 = 0) -> [String] {
      MicTest.lines(
        .init(levels: levels.map { ChannelLevel(peak: $0.peak, rms: $0.rms) }, frames: 144_000, framesLost: lost),
        device: "hw:1", seconds: .seconds(3))
    }
    #expect(last([(-20, -35)]).last == "The microphone works.")
    #expect(last([(0, -3)]).last == "The recording is clipped. Lower the gain (alsamixer).")
    #expect(last([(-50, -72)]).last?.hasPrefix("The recording is very quiet") == true)
    #expect(last([(-.infinity, -.infinity)]).last?.hasPrefix("Every sample is 0. Check") == true)
    let half = last([(-20, -35), (-.infinity, -.infinity)], lost: 7)
    #expect(half.contains("Every sample of channel 2 is 0.") && half.last == "The microphone works.")
    #expect(half[2] == "  channel 2: peak silence, mean silence")
    #expect(half.contains("The device lost 7 frames. Choose a longer --device-buffer."))
  }
}

extension UInt64 {
  fileprivate var asInt: Int { Int(clamping: self) }
}

@Suite("sluice devices")
struct DevicesTests {
  @Test("usable devices come first, and the others follow with the reason")
  func order() {
    func device(_ name: String, _ availability: CaptureDevice.Availability) -> CaptureDevice {
      CaptureDevice(name: name, description: "", availability: availability)
    }
    let support = CaptureDevice.Support(rates: [48_000], rateRange: 8000...48_000, channels: 1...2, formats: [.s16LE])
    let page = Devices.page([
      device("hw:0", .busy(holder: "arecord (pid 4711)")), device("default", .supports(support)),
      device("jack", .unavailable(reason: "it requires a running server")),
    ])
    #expect(
      page == [
        "default\n    8000–48000 Hz, 1–2 channels, S16_LE", "", "Devices that cannot be opened now:",
        "hw:0\n    in use by arecord (pid 4711)", "jack\n    it requires a running server",
      ])
    #expect(Devices.page([]).isEmpty)
  }

  @Test("the names of devices and programs cannot control the terminal")
  func controlCharacters() {
    let name = "Mic\u{1B}[2J\u{7}"
    for availability in [CaptureDevice.Availability.busy(holder: name), .unavailable(reason: name)] {
      let page = Devices.page([CaptureDevice(name: "hw:0", description: name, availability: availability)])
      #expect(page.count == 2 && page.allSatisfy { $0.contains("Mic") == $0.contains("[2J") })
      #expect(!page.contains { $0.contains("\u{1B}") || $0.contains("\u{7}") })
    }
  }

  @Test("if no device exists or none can be opened, it exits with 66", arguments: [false, true])
  func noDevice(isListed: Bool) throws {
    let directory = try TemporaryDirectory()
    // A card that does not exist, listed or not. A machine that has sound cards lists them, but cannot open them with
    // this configuration.
    let hint = #"namehint.pcm { gone "gone|A microphone that is gone|IOIDInput" }"#
    let configuration = try directory.write(
      "asound.conf", "pcm.gone { type hw card 31 }\n\(isListed ? hint : "")\n")
    let devices = try sluice(["devices"], environment: ["ALSA_CONFIG_PATH": configuration])
    #expect(try devices.wait() == 66)
    #expect(devices.output.contains("gone") == isListed)
    if isListed {
      #expect(devices.output.contains("    A microphone that is gone"))
      #expect(devices.errors.last == "sluice: cannot open any of these devices. Each line states the reason.")
    }
    let json = try sluice(["devices", "--json"], environment: ["ALSA_CONFIG_PATH": configuration])
    #expect(try json.wait() == 66)
    let unavailable = json.output.filter { $0.contains(#""status":"unavailable""#) }
    #expect(unavailable.contains { $0.contains(#""name":"gone""#) } == isListed)
  }
}
