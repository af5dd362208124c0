// Whether the network is metered, according to NetworkManager.
//
// It is queried over D-Bus with libsystemd's sd-bus (sd-bus(3)). The library is loaded when the first transfer needs
// the answer: most agents never need it, and the command does not depend on it.

internal import EventLoops
internal import Glibc

/// Reports the kind of network and each change of it, from a separate thread that otherwise sleeps.
enum NetworkManager {
  /// Without NetworkManager, a system bus or libsystemd, it reports once that no network is known to be metered.
  static func watch(_ report: @escaping @Sendable (NetworkConditions) -> Void) {
    do throws(SystemError) {
      try NamedThread("sluice-metered") {
        if let bus = SystemBus() { bus.watch(report) }
        // NetworkManager cannot be queried, or not any more.
        report(NetworkConditions())
      }.detach()
    } catch {
      report(NetworkConditions())
    }
  }
}

/// The properties of the network.
package struct NetworkConditions: Equatable, Sendable {
  /// Bytes cost money, or may: NetworkManager reports the connection as metered, or guesses so, as for a phone's.
  package var isExpensive = false
  /// The user has marked the connection as metered, so it must be used sparingly.
  package var isConstrained = false

  package init(isExpensive: Bool = false, isConstrained: Bool = false) {
    (self.isExpensive, self.isConstrained) = (isExpensive, isConstrained)
  }

  /// - Parameter metered: a value of NMMetered.
  init(metered: UInt32) {
    // 1 is yes, 2 no, 3 guessed yes, 4 guessed no; 0 is unknown.
    self.init(isExpensive: metered == 1 || metered == 3, isConstrained: metered == 1)
  }
}

/// libsystemd's connection to the system bus, for one thread.
private final class SystemBus {
  private typealias Open = @convention(c) (UnsafeMutablePointer<OpaquePointer?>) -> Int32
  private typealias Callback =
    @convention(c) (OpaquePointer?, UnsafeMutableRawPointer?, UnsafeMutableRawPointer?) -> Int32
  private typealias Text = UnsafePointer<CChar>
  private typealias Match =
    @convention(c) (
      OpaquePointer, UnsafeMutableRawPointer?, Text, Text, Text, Text, Callback, UnsafeMutableRawPointer?
    ) -> Int32
  private typealias Property =
    @convention(c) (
      OpaquePointer, Text, Text, Text, Text, UnsafeMutableRawPointer?, CChar, UnsafeMutableRawPointer
    ) -> Int32
  private typealias Process = @convention(c) (OpaquePointer, UnsafeMutableRawPointer?) -> Int32
  private typealias Wait = @convention(c) (OpaquePointer, UInt64) -> Int32

  private static let name = "org.freedesktop.NetworkManager"
  private static let path = "/org/freedesktop/NetworkManager"

  private let bus: OpaquePointer
  private let match: Match
  private let property: Property
  private let process: Process
  private let wait: Wait

  /// Nil without libsystemd or a system bus.
  init?() {
    guard let library = dlopen("libsystemd.so.0", RTLD_NOW | RTLD_LOCAL) else { return nil }
    func function<Function>(_ name: String, _ type: Function.Type) -> Function? {
      dlsym(library, name).map { unsafeBitCast($0, to: type) }
    }
    var opened: OpaquePointer?
    guard let open = function("sd_bus_open_system", Open.self), let match = function("sd_bus_match_signal", Match.self),
      let property = function("sd_bus_get_property_trivial", Property.self),
      let process = function("sd_bus_process", Process.self), let wait = function("sd_bus_wait", Wait.self),
      open(&opened) >= 0, let opened
    else { return nil }
    (bus, self.match, self.property, self.process, self.wait) = (opened, match, property, process, wait)
  }

  /// Reports until the bus ends.
  func watch(_ report: (NetworkConditions) -> Void) {
    let matched = match(
      bus, nil, Self.name, Self.path, "org.freedesktop.DBus.Properties", "PropertiesChanged", { _, _, _ in 0 }, nil)
    guard matched >= 0 else { return }
    var last: NetworkConditions?
    while true {
      var metered: UInt32 = 0
      let result = property(bus, Self.name, Self.path, Self.name, "Metered", nil, CChar(UInt8(ascii: "u")), &metered)
      if result == -ETIMEDOUT {
        // It exists but does not answer, so the cost is unknown. The call itself has taken a while.
        var handled = process(bus, nil)
        while handled > 0 { handled = process(bus, nil) }
        guard handled >= 0 else { return }
        continue
      }
      // Without NetworkManager, nothing is known to be metered. If it starts, its signal wakes this thread.
      let conditions = NetworkConditions(metered: result < 0 ? 0 : metered)
      if conditions != last { report(conditions) }
      last = conditions
      // Process the signals that have arrived, and then wait for the next one.
      var handled = process(bus, nil)
      if handled == 0 {
        guard wait(bus, .max) >= 0 else { return }
        handled = process(bus, nil)
      }
      while handled > 0 { handled = process(bus, nil) }
      guard handled >= 0 else { return }
    }
  }
}
