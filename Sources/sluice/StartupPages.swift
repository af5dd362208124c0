// Gives back the memory that only the start needed.
//
// libcurl brings OpenSSL, GnuTLS, Kerberos and LDAP with it, ALSA brings PulseAudio: their start-up code stays mapped,
// some ten megabytes that a stream never touches again. The kernel would take those pages back when memory runs short;
// on a small machine it is better not to count on them in the first place.

internal import CLinux
internal import Glibc

enum StartupPages {
  /// Unmaps all code and constants of the process; what is still needed comes back from the page cache at its next use.
  ///
  /// madvise(2), `MADV_DONTNEED`, on the segments that no one can have written to (`PT_LOAD` without `PF_W`): these
  /// pages are the files' own. Costs some hundred page faults; any thread.
  static func giveBack() {
    _ = dl_iterate_phdr(
      { information, _, _ in
        // Never nil: the loader calls this once for each object.
        let object = information!.pointee
        for index in 0..<Int(object.dlpi_phnum) {
          let segment = object.dlpi_phdr[index]
          guard segment.p_type == UInt32(PT_LOAD), segment.p_flags & UInt32(PF_W) == 0 else { continue }
          let pageSize = UInt(getpagesize())
          let start = UInt(object.dlpi_addr) + UInt(segment.p_vaddr)
          let first = start / pageSize * pageSize
          madvise(UnsafeMutableRawPointer(bitPattern: first), Int(start + UInt(segment.p_memsz) - first), MADV_DONTNEED)
        }
        return 0
      }, nil)
  }
}
