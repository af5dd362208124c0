// HPACK with libcurl's own HTTP/2 library. nghttp2 is installed with libcurl, but its header files are not.

internal import Glibc

/// Decodes the header blocks of one HTTP/2 connection (RFC 7541), in their order.
final class FieldInflater {
  /// `nghttp2_nv` of nghttp2.h.
  private struct Entry {
    var name: UnsafeMutablePointer<UInt8>?
    var value: UnsafeMutablePointer<UInt8>?
    var nameLength = 0
    var valueLength = 0
    var flags: UInt8 = 0
  }

  private struct Functions {
    typealias New = @convention(c) (UnsafeMutablePointer<OpaquePointer?>) -> Int32
    typealias Inflate =
      @convention(c) (
        OpaquePointer?, UnsafeMutableRawPointer, UnsafeMutablePointer<Int32>, UnsafePointer<UInt8>?, Int, Int32
      ) -> Int
    typealias End = @convention(c) (OpaquePointer?) -> Int32
    typealias Delete = @convention(c) (OpaquePointer?) -> Void

    var new: New
    var inflate: Inflate
    var end: End
    var delete: Delete

    static let loaded: Functions? = {
      guard let library = dlopen("libnghttp2.so.14", RTLD_NOW), let new = dlsym(library, "nghttp2_hd_inflate_new"),
        let inflate = dlsym(library, "nghttp2_hd_inflate_hd2"),
        let end = dlsym(library, "nghttp2_hd_inflate_end_headers"),
        let delete = dlsym(library, "nghttp2_hd_inflate_del")
      else { return nil }
      return Functions(
        new: unsafeBitCast(new, to: New.self), inflate: unsafeBitCast(inflate, to: Inflate.self),
        end: unsafeBitCast(end, to: End.self), delete: unsafeBitCast(delete, to: Delete.self))
    }()
  }

  /// `nghttp2_hd_inflate_flag`.
  private static let isFinal: Int32 = 1
  private static let emits: Int32 = 2

  private let functions: Functions
  private let inflater: OpaquePointer?

  init() throws {
    var inflater: OpaquePointer?
    guard let functions = Functions.loaded, functions.new(&inflater) == 0 else {
      throw TestFailure("there is no libnghttp2.so.14")
    }
    (self.functions, self.inflater) = (functions, inflater)
  }

  deinit { functions.delete(inflater) }

  func fields(_ block: [UInt8]) throws -> [(name: String, value: String)] {
    var fields: [(name: String, value: String)] = []
    var position = 0
    while true {
      var entry = Entry()
      var flags: Int32 = 0
      let count = block.withUnsafeBufferPointer { bytes in
        functions.inflate(
          inflater, &entry, &flags, bytes.baseAddress.map { $0 + position }, block.count - position, 1)
      }
      guard count >= 0 else { throw TestFailure("this is not HPACK") }
      position += count
      if flags & Self.emits != 0 {
        func text(_ start: UnsafeMutablePointer<UInt8>?, _ count: Int) -> String {
          String(decoding: UnsafeBufferPointer(start: start, count: count), as: UTF8.self)
        }
        fields.append((text(entry.name, entry.nameLength), text(entry.value, entry.valueLength)))
      }
      if flags & Self.isFinal != 0 { break }
      if flags & Self.emits == 0, count == 0 { break }
    }
    _ = functions.end(inflater)
    return fields
  }
}
