// Identifies the current boot of the machine. What was only in the kernel's memory is lost at the next boot.

internal import Glibc

package enum BootIdentifier {
  /// The kernel's identifier of this boot (random(4)); nil if the process cannot read it. Any thread.
  package static let kernel: String? = {
    let descriptor = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    var text = [UInt8](repeating: 0, count: 64)
    let count = max(0, read(descriptor, &text, text.count))
    let identifier = String(decoding: text[..<count].prefix { $0 > 0x20 }, as: UTF8.self)
    return identifier.isEmpty ? nil : identifier
  }()

  /// The same. If the kernel provides none, each process counts as a boot of its own, so that it relies on no data that
  /// another one has not synced.
  package static let current = kernel ?? "unknown \(UInt64.random(in: .min ... .max))"
}
