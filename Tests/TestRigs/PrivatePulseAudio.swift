// A separate PulseAudio server for a test, with a null sink whose monitor is a microphone in real time.

internal import Glibc

/// Started with only a socket and the sink `mic`, and isolated from any other PulseAudio.
package final class PrivatePulseAudio: @unchecked Sendable {
  package let rate: Int, channels: Int
  private let directory = ScratchDirectory()
  private var server: ChildProcess

  /// The reason why the server cannot run.
  package struct Failure: Error, CustomStringConvertible { package let description: String }

  /// Starts the server and waits until it answers.
  package init(rate: Int = 48_000, channels: Int = 1) throws {
    _ = AlsaConfiguration.path
    for (file, package) in [
      ("/usr/lib/x86_64-linux-gnu/alsa-lib/libasound_module_pcm_pulse.so", "libasound2-plugins"),
      ("/usr/lib/aarch64-linux-gnu/alsa-lib/libasound_module_pcm_pulse.so", "libasound2-plugins"),
    ]
    where Self.isThisMachines(file) && access(file, R_OK) != 0 {
      throw ChildProcess.Missing(program: file, package: package)
    }
    self.rate = rate
    self.channels = channels
    server = try Self.start(directory, rate, channels)
    try waitUntilItAnswers()
  }

  /// The socket, for `monitor:SERVER=…` and for `PULSE_SERVER=unix:…`.
  package var socketPath: String { directory.file("native") }

  /// The PCM that captures what is played.
  package var captureName: String { "monitor:SERVER=\(socketPath)" }

  /// Plays raw S16_LE samples into the sink, in the background.
  package func play(_ samples: [Int16]) throws -> ChildProcess {
    let bytes = samples.withUnsafeBytes { Array($0) }
    let file = directory.write(bytes, to: "signal.raw")
    return try ChildProcess(
      [
        "paplay", "--server=unix:\(socketPath)", "--device=mic", "--raw", "--format=s16le", "--rate=\(rate)",
        "--channels=\(channels)", file,
      ],
      package: "pulseaudio-utils", environment: environment, output: directory.file("paplay.log"))
  }

  /// Kills the server like a crash.
  package func crash() { server.end(SIGKILL) }

  /// Stops it with SIGSTOP, so that it no longer answers, or lets it continue with SIGCONT.
  package func signal(_ number: Int32) { server.signal(number) }

  /// Starts it again, at the same socket.
  package func restart() throws {
    unlink(socketPath)
    server = try Self.start(directory, rate, channels)
    try waitUntilItAnswers()
  }

  private var environment: [String: String] { Self.environment(directory) }

  private static func environment(_ directory: ScratchDirectory) -> [String: String] {
    // A home and a runtime directory of its own, without the user's cookie, configuration and socket.
    [
      "HOME": directory.path, "XDG_RUNTIME_DIR": directory.path, "XDG_CONFIG_HOME": directory.path,
      "PULSE_RUNTIME_PATH": directory.file("pulse"), "PULSE_STATE_PATH": directory.file("pulse"),
    ]
  }

  private static func start(_ directory: ScratchDirectory, _ rate: Int, _ channels: Int) throws -> ChildProcess {
    try ChildProcess(
      [
        "pulseaudio", "-n", "--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no", "--log-target=stderr",
        "-L", "module-native-protocol-unix socket=\(directory.file("native")) auth-anonymous=1",
        "-L", "module-null-sink sink_name=mic format=s16le rate=\(rate) channels=\(channels)",
      ],
      package: "pulseaudio", environment: environment(directory), output: directory.file("pulseaudio.log"))
  }

  /// It listens when a connection is accepted. It does not report that, so it is polled.
  private func waitUntilItAnswers() throws {
    for _ in 0..<1000 {
      if canConnect() { return }
      poll(nil, 0, 10)
    }
    let log = String(decoding: directory.read("pulseaudio.log"), as: UTF8.self)
    throw Failure(description: "PulseAudio did not start within 10 s:\n\(log)")
  }

  private func canConnect() -> Bool {
    let descriptor = socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    defer { close(descriptor) }
    var address = sockaddr_un()
    address.sun_family = sa_family_t(AF_UNIX)
    let path = socketPath
    return withUnsafeMutableBytes(of: &address.sun_path) {
      $0.copyBytes(from: path.utf8.prefix(107))
      return true
    }
      && withUnsafePointer(to: &address) { pointer in
        pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
          connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_un>.size))
        }
      } == 0
  }

  private static func isThisMachines(_ file: String) -> Bool {
    #if arch(x86_64)
      file.contains("x86_64")
    #elseif arch(arm64)
      file.contains("aarch64")
    #else
      false
    #endif
  }
}
