// Releases memory that only the start required.
//
// libcurl brings OpenSSL, GnuTLS, Kerberos and LDAP, and ALSA brings PulseAudio. Their start-up code stays mapped:
// about ten megabytes that a stream never uses again. The kernel would reclaim these pages when memory runs short. On a
// small machine, it is better not to use them in the first place.

internal import CLinux
internal import Glibc

enum StartupPages {
  /// Unmaps all code and constants of the process. Pages that are still needed return from the page cache at their next
  /// use.
  ///
  /// Calls madvise(2) with `MADV_DONTNEED` on the segments that cannot have been written (`PT_LOAD` without `PF_W`), so
  /// their pages are the file's own. It costs a few hundred page faults. Any thread.
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
