// Devices of the kernel's cards: which are listed, under which names, and which descriptors stay open.

import CALSA
import EventLoops
import Glibc
import SoundCards
import TestRigs
import Testing

@testable import AudioCapture

extension RealALSA {
  @Suite("The list of devices with sound cards")
  struct SoundCardTests {
    @Test("each capture device is listed once, with the names of its card and itself")
    func cards() {
      guard sound_cards_work() else { return }
      _ = AlsaConfiguration.path
      sound_cards_plug()
      defer { sound_cards_unplug() }
      for _ in 0..<5 {
        let devices = CaptureDevice.list()
        let hardware = devices.filter { $0.name.hasPrefix("hw:") }
        #expect(
          hardware.map { "\($0.name) \($0.description)" } == [
            "hw:CARD=SluiceMic,DEV=0 Test microphone, Line in", "hw:CARD=SluiceMic,DEV=2 Test microphone, Headset",
            "hw:CARD=Second,DEV=0 Other microphone, Boom",
          ])
        #expect(Set(devices.map(\.name)).count == devices.count)
        // ALSA's configuration also has names for the first of them, and for a variant of it.
        #expect(!devices.contains { $0.name.hasPrefix("front:") || $0.name.hasPrefix("dmix:") })
        // None of their PCMs can be opened, and such devices are not recommended.
        for device in hardware { #expect(!device.isUsable) }
      }
      #expect(CaptureDevice.usableNames().allSatisfy { !$0.contains("CARD=") && $0 != "testmic_recorder" })
    }

    // In a separate process, because other tests open descriptors, too.
    @Test("a list of the devices leaves no descriptor open")
    func descriptors() async {
      await #expect(processExitsWith: .success) {
        guard sound_cards_work() else { return }
        func openDescriptors() -> Int { (0..<Int32(4096)).count { fcntl($0, F_GETFD) >= 0 } }
        _ = AlsaConfiguration.path
        sound_cards_plug()
        _ = CaptureDevice.list()
        let before = openDescriptors()
        for _ in 0..<5 { _ = CaptureDevice.list() }
        exit(openDescriptors() == before ? EXIT_SUCCESS : EXIT_FAILURE)
      }
    }

    @Test("listing starts no JACK server, and states why it did not examine JACK")
    func jack() {
      guard case .unavailable(let reason) = CaptureDevice.look(at: "jack") else {
        Issue.record("it was looked at")
        return
      }
      #expect(reason.contains("JACK server"))
    }

    @Test("the formats of a device are named as ALSA names them, from the first to the last")
    func formatNames() {
      _ = AlsaConfiguration.path
      var pcm: OpaquePointer?
      #expect(snd_pcm_open(&pcm, "null", SND_PCM_STREAM_CAPTURE, 0) == 0)
      defer { snd_pcm_close(pcm) }
      var hw: OpaquePointer?
      snd_pcm_hw_params_malloc(&hw)
      defer { snd_pcm_hw_params_free(hw) }
      guard let pcm, let hw else { return }
      snd_pcm_hw_params_any(pcm, hw)
      let names = Abilities.formatNames(pcm, hw)
      #expect(names.first == "S8" && Set(["U8", "S16_LE", "FLOAT_LE"]).isSubset(of: names))
    }
  }
}

@Suite("The request for a microphone")
struct DefaultsTests {
  @Test("by default, a device holds the larger of half a second and eight periods")
  func buffer() {
    for milliseconds in [1, 10, 62, 63, 100, 5_000] {
      var configuration = MicrophoneConfiguration(period: .milliseconds(milliseconds))
      #expect(configuration.bufferTime == .milliseconds(max(500, 8 * milliseconds)))
      configuration.buffer = .milliseconds(77)
      #expect(configuration.bufferTime == .milliseconds(77))
    }
  }

  @Test("an error lists the supported values of the device: one value, or the minimum and the maximum")
  func ranges() {
    func words(_ range: ClosedRange<Int>) -> String {
      "\(MicrophoneError.unsupportedChannels(name: "hw:0", asked: 9, nearest: 2, range: range))"
    }
    #expect(words(2...2).contains("It supports 2,"))
    #expect(words(1...8).contains("It supports 1–8,"))
    let one = "\(MicrophoneError.unsupportedChannels(name: "hw:0", asked: 1, nearest: 2, range: 2...2))"
    #expect(one.contains("1 channel.") && words(2...2).contains("9 channels."))
  }
}
