// The data with which another process continues an upload.

internal import HTTPMessages

/// A small value that names an upload resource and its stream.
///
/// As text, it is one structured dictionary (RFC 9651), for example:
///
///     format=1, upload="http://host/.uploads/0f…", version=8, target="http://host/take", base=0, length=1048576
///
/// `format` is the version of this description. A reader refuses any other version. `version` is the interop version,
/// which is missing for the RFC. `base` is the stream offset of the upload's first byte. Keep the text as secret as the
/// upload's URL.
public struct ResumeData: Equatable, Sendable {
  /// The upload resource's absolute URL.
  public var upload: String
  /// The URL at which the upload began.
  public var target: String
  /// The stream offset of the upload's first byte.
  public var base: UInt64
  /// The length of the whole stream in bytes, if it is known.
  public var length: UInt64?
  /// The `Stream-ID`. Nil for an upload that is not a live stream.
  public var streamID: String?
  /// The interop version. Nil for the RFC.
  public var version: Int?
  /// Whether the server joins the parts of the stream. Then an upload that ends in a gap must not be completed.
  public var joinsParts: Bool

  static let format: Int64 = 1

  package init(
    upload: String, target: String, base: UInt64, length: UInt64?, streamID: String?, version: InteropVersion,
    joinsParts: Bool = false
  ) {
    self.upload = upload
    self.target = target
    self.base = base
    self.length = length
    self.streamID = streamID
    self.version = version.number
    self.joinsParts = joinsParts
  }

  /// Reads ``text``. Nil for anything else, including an unknown format.
  public init?(_ text: String) {
    guard let fields = StructuredDictionary(parsing: text), Self.integer(fields["format"]) == Self.format,
      let upload = Self.string(fields["upload"]), let target = Self.string(fields["target"]),
      let base = Self.integer(fields["base"]), base >= 0
    else { return nil }
    self.upload = upload
    self.target = target
    self.base = UInt64(base)
    length = Self.integer(fields["length"]).flatMap { UInt64(exactly: $0) }
    streamID = Self.string(fields["stream-id"])
    version = Self.integer(fields["version"]).map { Int($0) }
    joinsParts = Self.boolean(fields["joins-parts"])
    if let version, InteropVersion(number: Int64(version)) == nil { return nil }
  }

  /// Nil for values that structured fields cannot represent, such as an invalid URL with characters beyond ASCII.
  public var text: String? {
    var fields = StructuredDictionary()
    fields.set("format", .item(Item(.integer(Self.format))))
    fields.set("upload", .item(Item(.string(upload))))
    if let version { fields.set("version", .item(Item(.integer(Int64(version))))) }
    fields.set("target", .item(Item(.string(target))))
    fields.set("base", .item(Item(.integer(Int64(clamping: base)))))
    if let length { fields.set("length", .item(Item(.integer(Int64(clamping: length))))) }
    if let streamID { fields.set("stream-id", .item(Item(.string(streamID)))) }
    if joinsParts { fields.set("joins-parts", .item(Item(.boolean(true)))) }
    return fields.serialized
  }

  package var interopVersion: InteropVersion {
    version.flatMap { InteropVersion(number: Int64($0)) } ?? .none
  }

  private static func string(_ value: StructuredDictionary.Value?) -> String? {
    if case .item(let item)? = value, case .string(let text) = item.value { text } else { nil }
  }

  /// False if it is missing.
  private static func boolean(_ value: StructuredDictionary.Value?) -> Bool {
    if case .item(let item)? = value, case .boolean(true) = item.value { true } else { false }
  }

  private static func integer(_ value: StructuredDictionary.Value?) -> Int64? {
    if case .item(let item)? = value, case .integer(let number) = item.value { number } else { nil }
  }
}

extension ResumeData: CustomStringConvertible, CustomDebugStringConvertible, CustomReflectable {
  /// One line for a log, without the URL of the upload resource and without the query of the other URL. Use ``text`` to
  /// keep the data.
  public var description: String { "an upload to \(shownTarget) from stream offset \(base)" }

  /// The same for a debugger.
  public var debugDescription: String { "ResumeData(\(description))" }

  /// For `dump` and debuggers, without the URL of the upload resource.
  public var customMirror: Mirror {
    Mirror(self, children: ["target": shownTarget, "base": base], displayStyle: .struct)
  }

  private var shownTarget: Substring { target.prefix { !"?#".contains($0) } }
}
