// Whether the network costs money or is to be spared, by the word of NetworkManager.
//
// It is asked over D-Bus with libsystemd's sd-bus (sd-bus(3)), which is loaded when the first transfer depends on the
// answer: most agents never need it, and the command does not depend on it.

internal import EventLoops
internal import Glibc

/// Reports the kind of network, and each change of it, from a thread of its own that sleeps in between.
enum NetworkManager {
  /// Without NetworkManager, a system bus or libsystemd, it reports once that nothing is known to be metered.
  static func watch(_ report: @escaping @Sendable (NetworkConditions) -> Void) {
    do throws(SystemError) {
      try NamedThread("sluice-metered") {
        if let bus = SystemBus() { bus.watch(report) }
        // There is nothing to ask, or nothing any more.
        report(NetworkConditions())
      }.detach()
    } catch {
      report(NetworkConditions())
    }
  }
}

/// What the network is like.
package struct NetworkConditions: Equatable, Sendable {
  /// Bytes cost money, or may: NetworkManager says that the connection is metered, or guesses so, as for a phone's.
  package var isExpensive = false
  /// The user has said that the connection is metered: it is to be spared.
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
        // It is there, and silent: nobody knows whether bytes cost money. The question itself took a while.
        var handled = process(bus, nil)
        while handled > 0 { handled = process(bus, nil) }
        guard handled >= 0 else { return }
        continue
      }
      // Without NetworkManager, nothing is known to be metered. If it starts, its signal wakes this thread.
      let conditions = NetworkConditions(metered: result < 0 ? 0 : metered)
      if conditions != last { report(conditions) }
      last = conditions
      // Signals that have come, and then the next one.
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
