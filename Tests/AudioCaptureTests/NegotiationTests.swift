// The negotiation between the request for a microphone and its opening.

import CALSA
import Glibc
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing

@testable import AudioCapture

extension RealALSA {
  @Suite("Opening a microphone")
  struct NegotiationTests {
    private let rig = TestMicrophone()

    private func failure(_ configuration: MicrophoneConfiguration) -> MicrophoneError? {
      do throws(MicrophoneError) {
        _ = try Microphone(configuration)
        return nil
      } catch {
        return error
      }
    }

    @Test("the device has the requested values, and differences are reported")
    func exact() throws {
      let microphone = try Microphone(
        MicrophoneConfiguration(
          device: rig.name(), rate: 44_100, channels: 3, format: .s24_3LE, period: .milliseconds(20),
          buffer: .milliseconds(200)))
      #expect(microphone.format.rate == 44_100)
      #expect(microphone.format.channels == 3)
      #expect(microphone.format.format == .s24_3LE)
      #expect(microphone.format.periodFrames == 882)
      #expect(microphone.format.bufferFrames == 8820)
      #expect(microphone.format.bytesPerFrame == 9)
      #expect(microphone.format.countsThroughOverruns)
    }

    @Test("the error for an unknown device names it and lists the existing devices")
    func noSuchDevice() throws {
      guard case .noSuchDevice("nonsense", let available)? = failure(.init(device: "nonsense")) else {
        Issue.record("another error")
        return
      }
      #expect(!available.contains("null"))
      let error = MicrophoneError.noSuchDevice(name: "nonsense", available: ["hw:CARD=Mic,DEV=0", "pulse"])
      #expect(
        "\(error)" == "cannot open \"nonsense\": no such capture device. Choose one of these: hw:CARD=Mic,DEV=0, pulse")
    }

    @Test("the error for an unplugged card is an unknown device")
    func unplugged() {
      testmic_set_absent(rig.page, true)
      guard case .noSuchDevice? = failure(.init(device: rig.name())) else {
        Issue.record("another error")
        return
      }
    }

    @Test(
      "the error for an unsupported rate has the nearest rate",
      arguments: [(8_000, 44_100), (47_000, 48_000), (96_000, 48_000)])
    func rate(asked: Int, nearest: Int) {
      let name = rig.name("testmic_narrow")
      #expect(
        failure(.init(device: name, rate: asked, channels: 2))
          == .unsupportedRate(name: name, asked: asked, nearest: nearest, range: 44_100...48_000))
    }

    @Test("the error for unsupported channels has the nearest number")
    func channels() {
      let name = rig.name("testmic_narrow")
      #expect(
        failure(.init(device: name, channels: 1))
          == .unsupportedChannels(name: name, asked: 1, nearest: 2, range: 2...2))
    }

    @Test("the error for an unsupported format has the nearest format, preferably one that loses no bits")
    func format() {
      let name = rig.name("testmic_narrow")
      #expect(
        failure(.init(device: name, channels: 2, format: .s24_3LE))
          == .unsupportedFormat(name: name, asked: .s24_3LE, nearest: .s32LE, supported: ["S16_LE", "S32_LE"]))
    }

    @Test("the capture resamples only if the name requests it")
    func resampling() throws {
      let narrow = rig.name("testmic_narrow")
      #expect(try Microphone(.init(device: "plug:'\(narrow)'", rate: 16_000, channels: 1)).format.rate == 16_000)
      let converted = rig.name("testmic_converted")
      #expect(
        failure(.init(device: converted, rate: 16_000))
          == .unsupportedRate(name: converted, asked: 16_000, nearest: 44_100, range: 44_100...48_000))
    }

    @Test("a busy device causes its own error")
    func busy() throws {
      let name = rig.name()
      let first = try Microphone(.init(device: name))
      #expect(failure(.init(device: name)) == .busy(name: name, holder: nil))
      withExtendedLifetime(first) {}
      testmic_set_busy(rig.page, true)
      #expect(failure(.init(device: name)) == .busy(name: name, holder: nil))
    }

    @Test("a device is free again after its microphone is released, started or not")
    func freed() throws {
      let name = rig.name()
      for _ in 0..<3 { _ = try Microphone(.init(device: name)) }
      #expect(testmic_opens(rig.page) == 3)
      for _ in 0..<3 {
        let microphone = try Microphone(.init(device: name))
        let ends = try CircularBuffer.make(capacity: .bytes(1 << 20))
        try microphone.start(into: ends.producer)
      }
      #expect(testmic_opens(rig.page) == 6)
    }

    @Test("the release of a microphone does not wait for a driver that hangs, and its device is free afterwards")
    func hangingDriver() throws {
      let configuration = MicrophoneConfiguration(device: rig.name())
      do {
        let microphone = try Microphone(configuration)
        let ends = try CircularBuffer.make(capacity: .bytes(1 << 20))
        let prepares = testmic_prepares(rig.page)
        testmic_set_start_delay(rig.page, 8_000)
        try microphone.start(into: ends.producer)
        #expect(rig.wait { testmic_prepares($0) > prepares })
      }
      #expect(testmic_starts(rig.page) == 0, "the driver still hangs")
      testmic_set_start_delay(rig.page, 0)
      #expect(rig.wait { testmic_starts($0) == 1 })
      rig.wait { _ in failure(configuration) == nil }
      #expect(failure(configuration) == nil)
    }

    @Test("the device is asked for time stamps")
    func timeStamps() throws {
      let device = try Negotiation(configuration: MicrophoneConfiguration(device: rig.name())).open(explains: false)
      defer { device.close() }
      var allocated: OpaquePointer?
      snd_pcm_sw_params_malloc(&allocated)
      let parameters = try #require(allocated)
      defer { snd_pcm_sw_params_free(parameters) }
      #expect(snd_pcm_sw_params_current(device.pcm, parameters) == 0)
      var mode = SND_PCM_TSTAMP_NONE
      #expect(snd_pcm_sw_params_get_tstamp_mode(parameters, &mode) == 0)
      #expect(mode == SND_PCM_TSTAMP_ENABLE)
    }

    @Test(
      "values that no device supports are refused before a device is opened",
      arguments: [
        MicrophoneConfiguration(device: ""), .init(rate: 0), .init(rate: -1), .init(channels: 0), .init(channels: 1000),
        .init(period: .zero), .init(period: .seconds(10)), .init(period: .milliseconds(20), buffer: .milliseconds(20)),
      ])
    func invalid(configuration: MicrophoneConfiguration) {
      guard case .invalid(let message)? = failure(configuration) else {
        Issue.record("another error")
        return
      }
      #expect(!message.isEmpty)
    }

    @Test("the device itself refuses values at the limits of the range, and values beyond it are refused before")
    func bounds() {
      let name = rig.name()
      func with(_ change: (inout MicrophoneConfiguration) -> Void) -> MicrophoneConfiguration {
        var configuration = MicrophoneConfiguration(device: name)
        change(&configuration)
        return configuration
      }
      func buffered(_ period: Duration, _ buffer: Duration) -> MicrophoneConfiguration {
        .init(device: name, period: period, buffer: buffer)
      }
      let allowed =
        [1_000, 768_000].map { rate in with { $0.rate = rate } }
        + [1, 64].map { channels in with { $0.channels = channels } }
        + [
          buffered(.microseconds(500), .milliseconds(1)), buffered(.seconds(5), .seconds(10)),
          buffered(.seconds(5), .seconds(60)),
        ]
      for configuration in allowed {
        if case .invalid(let message)? = failure(configuration) { Issue.record("\(message)") }
      }
      let short = Duration.nanoseconds(1)
      let refused =
        [999, 768_001].map { rate in with { $0.rate = rate } }
        + [0, 65].map { channels in with { $0.channels = channels } }
        + [
          buffered(.microseconds(500) - short, .milliseconds(1)), buffered(.seconds(5) + short, .seconds(20)),
          buffered(.seconds(5), .seconds(10) - short), buffered(.seconds(5), .seconds(60) + short),
        ]
      for configuration in refused {
        guard case .invalid? = failure(configuration) else {
          Issue.record("\(configuration)")
          return
        }
      }
    }

    @Test("every error has a cause and a remedy")
    func sentences() {
      let permission = "\(MicrophoneError.permissionDenied(name: "hw:0"))"
      #expect(permission.contains("hw:0") && permission.contains("group \"audio\""))
      let busy = "\(MicrophoneError.busy(name: "hw:0", holder: "arecord (pid 12)"))"
      #expect(busy.contains("arecord (pid 12)") && busy.contains("dsnoop"))
      let rate =
        "\(MicrophoneError.unsupportedRate(name: "hw:0", asked: 8000, nearest: 16_000, range: 16_000...48_000))"
      #expect(rate.contains("the nearest rate is 16000 Hz") && rate.contains("plughw:"))
      let server = "\(MicrophoneError.system(operation: "opening \"pulse\"", code: ECONNREFUSED, detail: ""))"
      #expect(server.contains("Connection refused") && server.contains("no sound server is running"))
    }

    @Test("messages of libasound are in the error, not on standard error")
    func messages() {
      let (result, messages) = AlsaMessages.collected {
        var pcm: OpaquePointer?
        return snd_pcm_open(&pcm, "nonsense", SND_PCM_STREAM_CAPTURE, 0)
      }
      #expect(result == -ENOENT)
      #expect(messages == "Unknown PCM nonsense")
    }

    /// libasound's message for an unknown name.
    private func say(_ name: String) {
      var pcm: OpaquePointer?
      _ = snd_pcm_open(&pcm, name, SND_PCM_STREAM_CAPTURE, 0)
    }

    @Test("several messages become one line without duplicates, within the maximum length")
    func manyMessages() {
      var inner = ""
      let outer = AlsaMessages.collected {
        say("first")
        inner = AlsaMessages.collected { say("within") }.messages
        say("second")
      }
      #expect(outer.messages == "Unknown PCM first; Unknown PCM second" && inner == "Unknown PCM within")
      for length in 1...60 {
        let name = String(repeating: "x", count: length)
        let all = [String](repeating: "Unknown PCM \(name)", count: 100).joined(separator: "; ")
        let found = AlsaMessages.collected { for _ in 0..<100 { say(name) } }.messages
        // 1 KiB, including the terminating zero.
        #expect(all.hasPrefix(found) && (1000...1023).contains(found.utf8.count), "\(found.utf8.count) of \(length)")
      }
    }

    @Test("the list has the devices of the configuration, with their capabilities")
    func list() throws {
      // A hint adds a PCM of the configuration to the list. Its arguments exclude the test microphone.
      let devices = CaptureDevice.list()
      for device in devices { #expect(!device.name.isEmpty && device.name != "null") }
      guard case .supports(let support) = CaptureDevice.look(at: rig.name("testmic_narrow")) else {
        Issue.record("the test microphone cannot be looked at")
        return
      }
      #expect(support.rates == [44_100, 48_000])
      #expect(support.channels == 2...2)
      #expect(support.formats == [.s16LE, .s32LE])
      testmic_set_busy(rig.page, true)
      #expect(CaptureDevice.look(at: rig.name()) == .busy(holder: nil))
    }
  }
}

@Suite("Cards without permission")
struct ProcAsoundTests {
  @Test("their capture devices are listed from /proc/asound, in order, and other cards and files are ignored")
  func captureDevices() throws {
    let scratch = ScratchDirectory()
    func write(_ name: String, _ text: String) throws {
      let path = scratch.file(name)
      for end in path.indices where path[end] == "/" && end > path.startIndex { mkdir(String(path[..<end]), 0o700) }
      let descriptor = open(path, O_WRONLY | O_CREAT, 0o600)
      #expect(descriptor >= 0 && Glibc.write(descriptor, text, text.utf8.count) == text.utf8.count)
      close(descriptor)
    }
    try write("card3/id", "Mic\n")
    try write(
      "card3/pcm1c/info", "card: 3\ndevice: 1\nstream: CAPTURE\nid: USB Audio\nname: USB Audio #1\nsubname: x\n")
    try write("card3/pcm0c/info", "card: 3\nname: Second\n")
    try write("card3/pcm0p/info", "card: 3\nname: Loudspeaker\n")
    try write("card3/pcmxc/info", "nonsense")
    try write("card4/pcm0c/info", "a card without an ID")
    let found = ProcAsound.captureDevices(ofCard: 3, under: scratch.path)
    #expect(found.map(\.name) == ["hw:CARD=Mic,DEV=0", "hw:CARD=Mic,DEV=1"])
    #expect(found.map(\.description) == ["Second", "USB Audio #1"])
    for card in [Int32(4), 5, -1] { #expect(ProcAsound.captureDevices(ofCard: card, under: scratch.path).isEmpty) }
  }
}
