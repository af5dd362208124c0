// ALSA's configuration for tests: the system's own, the test microphone, and PulseAudio servers by their socket.

internal import Glibc

/// One configuration for the whole test process, because libasound reads only one. Differences are passed to its
/// devices as arguments:
///
/// - `testmic:CONTROL=/path`: the test microphone. `testmic_narrow` has 44100 and 48000 Hz, 2 channels, S16_LE and
///   S32_LE only. `testmic_stopping` stops when it overruns, whatever its settings are. `testmic_short` has at most
///   4800 frames.
/// - `testmic_converted`: a converter in front of one with 44100 and 48000 Hz, whose name does not show it.
/// - `monitor:SERVER=/path`: the audio that is played into the sink `mic` of the PulseAudio server at that socket.
package enum AlsaConfiguration {
  /// The configuration file, for the environment of other programs: `ALSA_CONFIG_PATH`. Written at first use, and also
  /// set for this process.
  package static let path: String = {
    let path = directory.write(text, to: "asound.conf")
    // The deinit of a static never runs.
    atexit { AlsaConfiguration.directory.remove() }
    setenv("ALSA_CONFIG_PATH", path, 1)
    return path
  }()

  private static let directory = ScratchDirectory()

  /// The directory of the package's products, which contains the test program.
  package static let productDirectory: String = {
    var buffer = [CChar](repeating: 0, count: 4096)
    let count = readlink("/proc/self/exe", &buffer, buffer.count)
    let program = String(decoding: buffer.prefix(max(0, count)).map(UInt8.init(bitPattern:)), as: UTF8.self)
    return String(program[..<(program.lastIndex(of: "/") ?? program.startIndex)])
  }()

  private static var text: String {
    """
    </usr/share/alsa/alsa.conf>
    pcm_type.testmic { lib "\(productDirectory)/libTestDevice.so" }
    \(testMicrophone("testmic", ""))
    \(testMicrophone("testmic_narrow", "rates [ 44100 48000 ] channels [ 2 ] formats [ S16_LE S32_LE ]"))
    \(testMicrophone("testmic_stopping", "always_stops true"))
    \(testMicrophone("testmic_short", "buffer_max 4800"))
    pcm.testmic_converted {
      @args [ CONTROL ]
      @args.CONTROL { type string }
      type plug
      slave.pcm {
        type testmic
        control $CONTROL
        seed 1
        rates [ 44100 48000 ]
      }
    }
    pcm.monitor {
      @args [ SERVER ]
      @args.SERVER { type string }
      type pulse
      server { @func concat strings [ "unix:" $SERVER ] }
      device "mic.monitor"
    }
    namehint.pcm {
      testmic_player "testmic_player|Plays only|IOIDOutput"
      testmic_recorder "testmic_recorder|Records only|IOIDInput"
      card_again "hw:CARD=SluiceMic,DEV=0|The same again|IOIDInput"
      card_variant "front:CARD=SluiceMic,DEV=0|A variant|IOIDInput"
    }
    """
  }

  private static func testMicrophone(_ name: String, _ settings: String) -> String {
    """
    pcm.\(name) {
      @args [ CONTROL ]
      @args.CONTROL { type string }
      type testmic
      control $CONTROL
      seed 1
      \(settings)
    }
    """
  }
}
