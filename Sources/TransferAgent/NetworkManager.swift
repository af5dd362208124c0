// Whether the network is metered, according to NetworkManager.
//
// It is queried over D-Bus with libsystemd's sd-bus (sd-bus(3)). The library is loaded when the first transfer needs
// the answer: most agents never need it, and the command does not depend on it.

internal import EventLoops
internal import Glibc

/// Reports the kind of network and each change of it, from a separate thread that otherwise sleeps.
enum NetworkManager {
  enum News: Sendable {
    case conditions(NetworkConditions)
    /// NetworkManager does not answer. The watch continues, and asks again.
    case silent(SystemError)
    /// The watch has ended because this machine has no libsystemd, or no system bus that this user can use.
    case noBus(SystemError)
    /// The watch has ended for another reason, such as a lost connection. The network may be the same as before.
    case lost(SystemError)
  }

  /// Reports until the watch ends, which is the last report.
  ///
  /// - Parameter last: the last known conditions; nil if there are none.
  static func watch(after last: NetworkConditions?, _ report: @escaping @Sendable (News) -> Void) {
    do throws(SystemError) {
      try NamedThread("sluice-metered") {
        do throws(SystemError) {
          try SystemBus().watch(after: last, report)
        } catch {
          report(SystemBus.temporary.contains(error.code) ? .lost(error) : .noBus(error))
        }
      }.detach()
    } catch {
      report(.lost(error))
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
    @convention(c) (OpaquePointer, UnsafeMutableRawPointer?, Text, Callback, UnsafeMutableRawPointer?) -> Int32
  private typealias Property =
    @convention(c) (
      OpaquePointer, Text, Text, Text, Text, UnsafeMutableRawPointer?, CChar, UnsafeMutableRawPointer
    ) -> Int32
  private typealias Process = @convention(c) (OpaquePointer, UnsafeMutableRawPointer?) -> Int32
  private typealias Wait = @convention(c) (OpaquePointer, UInt64) -> Int32
  private typealias Close = @convention(c) (OpaquePointer) -> Void
  private typealias Release = @convention(c) (OpaquePointer) -> OpaquePointer?

  private static let name = "org.freedesktop.NetworkManager"
  private static let path = "/org/freedesktop/NetworkManager"
  /// The signals that wake the thread: a property changes, and NetworkManager starts or ends.
  private static let signals = [
    "type='signal',sender='\(name)',path='\(path)',interface='org.freedesktop.DBus.Properties',"
      + "member='PropertiesChanged'",
    "type='signal',sender='org.freedesktop.DBus',path='/org/freedesktop/DBus',interface='org.freedesktop.DBus',"
      + "member='NameOwnerChanged',arg0='\(name)'",
  ]
  /// The errors of calls that may succeed later, or whose connection has ended. All others show that the bus or
  /// NetworkManager is missing.
  static let temporary: Set<Int32> = [
    EMFILE, ENFILE, ENOMEM, ENOBUFS, EAGAIN, EINTR, ETIMEDOUT, ECONNRESET, ENOTCONN, EPIPE,
  ]

  private let bus: OpaquePointer
  private let match: Match
  private let property: Property
  private let process: Process
  private let wait: Wait
  private let close: Close
  private let release: Release

  /// - Throws: ``SystemError`` without libsystemd or a system bus.
  init() throws(SystemError) {
    guard let library = dlopen("libsystemd.so.0", RTLD_NOW | RTLD_LOCAL) else {
      // The message ends with that of the error number, if the system has refused something.
      let words = dlerror().map { String(cString: $0) } ?? ""
      let code = Self.temporary.first { words.hasSuffix(String(cString: strerror($0))) }
      throw SystemError(operation: "dlopen libsystemd.so.0", code: code ?? ENOENT)
    }
    func function<Function>(_ name: String, _ type: Function.Type) -> Function? {
      dlsym(library, name).map { unsafeBitCast($0, to: type) }
    }
    guard let open = function("sd_bus_open_system", Open.self), let match = function("sd_bus_add_match", Match.self),
      let property = function("sd_bus_get_property_trivial", Property.self),
      let process = function("sd_bus_process", Process.self), let wait = function("sd_bus_wait", Wait.self),
      let close = function("sd_bus_close", Close.self), let release = function("sd_bus_unref", Release.self)
    else { throw SystemError(operation: "dlsym", code: ENOSYS) }
    var opened: OpaquePointer?
    let result = open(&opened)
    guard result >= 0, let opened else { throw SystemError(operation: "sd_bus_open_system", code: -result) }
    (bus, self.match, self.property, self.process, self.wait) = (opened, match, property, process, wait)
    (self.close, self.release) = (close, release)
  }

  deinit {
    close(bus)
    _ = release(bus)
  }

  /// Reports until the connection to the bus ends.
  ///
  /// - Throws: ``SystemError``, always.
  func watch(after last: NetworkConditions?, _ report: (NetworkManager.News) -> Void) throws(SystemError) {
    for signal in Self.signals {
      try check("sd_bus_add_match", match(bus, nil, signal, { _, _, _ in 0 }, nil))
    }
    var (known, reported) = (last, NetworkConditions?.none)
    var absentSince: MonotonicInstant?
    while true {
      var metered: UInt32 = 0
      let result = property(bus, Self.name, Self.path, Self.name, "Metered", nil, CChar(UInt8(ascii: "u")), &metered)
      // In microseconds.
      var timeout = UInt64.max
      if result == -ETIMEDOUT {
        // It exists but does not answer, so the cost is unknown. The call itself has taken a while.
        report(.silent(SystemError(operation: "sd_bus_get_property_trivial", code: ETIMEDOUT)))
        // The next answer is reported even if it is the same as before the silence.
        (timeout, reported) = (0, nil)
      } else {
        if Self.temporary.contains(-result) { try check("sd_bus_get_property_trivial", result) }
        // Without NetworkManager, nothing is known to be metered. If it starts, a signal wakes this thread.
        let conditions = NetworkConditions(metered: result < 0 ? 0 : metered)
        absentSince = result < 0 ? absentSince ?? MonotonicInstant.now : nil
        let rest = absentSince.map { NetworkKnowledge.restartLimit - (MonotonicInstant.now - $0) } ?? .zero
        if let known, known != conditions, rest > .zero {
          timeout = UInt64(rest.nanoseconds / 1000) + 1
        } else {
          if conditions != reported { report(.conditions(conditions)) }
          (known, reported) = (conditions, conditions)
        }
      }
      // Process the signals that have arrived, and then wait for the next one.
      var handled = try check("sd_bus_process", process(bus, nil))
      if handled == 0 {
        let waited = wait(bus, timeout)
        if waited != -EINTR { try check("sd_bus_wait", waited) }
        handled = try check("sd_bus_process", process(bus, nil))
      }
      while handled > 0 { handled = try check("sd_bus_process", process(bus, nil)) }
    }
  }

  /// - Parameter result: the negated error number of a failed call.
  @discardableResult
  private func check(_ operation: String, _ result: Int32) throws(SystemError) -> Int32 {
    guard result >= 0 else { throw SystemError(operation: operation, code: -result) }
    return result
  }
}
