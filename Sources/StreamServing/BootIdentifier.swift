// Identifies the current boot of the machine. Data that was only in the kernel's memory is lost at the next boot.

internal import Glibc

package enum BootIdentifier {
  /// The kernel's identifier of this boot (random(4)).
  package static func read() -> String {
    let descriptor = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)
    // If it is unknown, each server counts as a boot of its own, so that it relies on no unsynced data.
    guard descriptor >= 0 else { return StreamName.randomID() }
    defer { close(descriptor) }
    var text = [UInt8](repeating: 0, count: 64)
    let count = Glibc.read(descriptor, &text, text.count)
    let identifier = String(decoding: text.prefix(max(0, count)).filter { $0 > 0x20 }, as: UTF8.self)
    return identifier.isEmpty ? StreamName.randomID() : identifier
  }
}
