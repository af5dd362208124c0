// A separate PipeWire for a test: the daemon, its session manager, and one silent microphone in real time.

internal import Glibc

/// Started with only its socket and the node `mic`. It needs no D-Bus, systemd or device.
package final class PrivatePipeWire: @unchecked Sendable {
  private let directory = ScratchDirectory()
  private let daemon: ChildProcess
  private let manager: ChildProcess

  /// The reason why it cannot run.
  package struct Failure: Error, CustomStringConvertible { package let description: String }

  package init() throws {
    guard let plugin = Self.plugin else { throw ChildProcess.Missing(program: "its plugin", package: "pipewire-alsa") }
    let environment = Self.environment(directory)
    directory.write(Self.daemonConfiguration, to: "pipewire.conf")
    directory.write(Self.alsaConfiguration(plugin), to: "asound.conf")
    for folder in ["wireplumber", "wireplumber/policy.lua.d"] { mkdir(directory.file(folder), 0o700) }
    // Only the policy that links streams with nodes. The other parts of WirePlumber (devices, Bluetooth, portals) need
    // D-Bus.
    directory.write(
      """
      load_module("metadata")
      load_module("default-nodes", { ["use-persistent-storage"] = false })

      """, to: "wireplumber/policy.lua.d/80-without-main.lua")
    daemon = try ChildProcess(
      ["pipewire", "-c", directory.file("pipewire.conf")], package: "pipewire", environment: environment,
      output: directory.file("pipewire.log"))
    // It does not report that it is ready, but its socket exists when it listens.
    for _ in 0..<1000 where access(directory.file("pipewire-0"), F_OK) != 0 { poll(nil, 0, 10) }
    guard access(directory.file("pipewire-0"), F_OK) == 0 else {
      let log = String(decoding: directory.read("pipewire.log"), as: UTF8.self)
      throw Failure(description: "PipeWire did not start within 10 s:\n\(log)")
    }
    manager = try ChildProcess(
      ["wireplumber", "-c", "policy.conf"], package: "wireplumber", environment: environment,
      output: directory.file("wireplumber.log"))
  }

  /// A command prefix that gives a program this PipeWire as its default ALSA device.
  package var prefix: [String] {
    ["env"] + Self.environment(directory).map { "\($0.key)=\($0.value)" }
      + ["ALSA_CONFIG_PATH=\(directory.file("asound.conf"))"]
  }

  private static func environment(_ directory: ScratchDirectory) -> [String: String] {
    ["HOME": directory.path, "XDG_RUNTIME_DIR": directory.path, "XDG_CONFIG_HOME": directory.path]
  }

  /// ALSA's own configuration, and the additions of the package pipewire-alsa for systems with PipeWire as the sound
  /// server.
  private static func alsaConfiguration(_ plugin: String) -> String {
    """
    </usr/share/alsa/alsa.conf>
    pcm_type.pipewire { lib "\(plugin)" }
    <\(package)/usr/share/alsa/alsa.conf.d/50-pipewire.conf>
    <\(package)/usr/share/alsa/alsa.conf.d/99-pipewire-default.conf>

    """
  }

  private static let daemonConfiguration = """
    context.properties = { core.daemon = true, core.name = pipewire-0 }
    context.spa-libs = {
      audio.convert.* = audioconvert/libspa-audioconvert
      support.* = support/libspa-support
    }
    context.modules = [
      { name = libpipewire-module-protocol-native }
      { name = libpipewire-module-metadata }
      { name = libpipewire-module-spa-node-factory }
      { name = libpipewire-module-client-node }
      { name = libpipewire-module-client-device }
      { name = libpipewire-module-access }
      { name = libpipewire-module-adapter }
      { name = libpipewire-module-link-factory }
      { name = libpipewire-module-session-manager }
    ]
    context.objects = [
      { factory = spa-node-factory args = {
          factory.name = support.node.driver node.name = Driver node.group = pipewire.dummy priority.driver = 20000 } }
      { factory = adapter args = {
          factory.name = support.null-audio-sink node.name = mic media.class = Audio/Source/Virtual
          object.linger = true audio.position = [ MONO ] } }
    ]

    """

  /// Whether `make test-packages` has downloaded everything that it needs.
  package static var isAvailable: Bool {
    plugin != nil && ["pipewire", "wireplumber"].allSatisfy(ChildProcess.isInstalled)
  }

  /// The package pipewire-alsa, unpacked. Installing it would remove PulseAudio.
  private static var package: String {
    let root = #filePath.split(separator: "/").dropLast(3).joined(separator: "/")
    return "/\(root)/.build/pipewire-alsa"
  }

  private static var plugin: String? {
    ["x86_64-linux-gnu", "aarch64-linux-gnu"]
      .map { "\(package)/usr/lib/\($0)/alsa-lib/libasound_module_pcm_pipewire.so" }
      .first { access($0, R_OK) == 0 }
  }
}
