// The part of an upload resource that must outlive the server, as text. Each line is a field with a structured value,
// so the protocol's own parser reads it.

package import HTTPMessages

/// The state of an upload resource apart from its bytes. The offset is not part of it: it is the number of bytes kept.
package struct UploadRecord: Equatable, Sendable {
  /// The response that was produced from processing the representation.
  package struct Response: Equatable, Sendable {
    package var status: Int
    package var fields: HeaderFields
    package var body: [UInt8]

    package init(status: Int, fields: HeaderFields, body: [UInt8]) {
      self.status = status
      self.fields = fields
      self.body = body
    }
  }

  /// The request that created the resource: method, target, and fields without the protocol's own. Fields that carry
  /// credentials (``SecretFields``) exist only in the process: ``text`` contains none of them.
  package var method: String
  package var target: String
  package var fields: HeaderFields
  /// Seconds since 1970.
  package var created: Int64
  /// Identifies the creator's credential, if there was one. It is never the credential itself.
  package var credential: [UInt8]?
  /// Identifies a creator without a credential: the peer's address without its port.
  package var client: String
  /// The limits that the creation reported. They SHOULD NOT change to the client's disadvantage (section "Limits"),
  /// even if the server is restarted with others.
  package var limits: UploadLimits
  package var length: UInt64?
  /// Whether the request has begun, so that something must be kept.
  package var hasBegun = false
  /// Whether the file for the bytes was made for this upload, and is removed with it.
  package var ownsFile = false
  /// Whether the creation announced no length. The bytes of such an upload are not removed by age.
  package var isLive = true
  /// The offset, if it lies inside bytes of the same stream that others have stored, because the file's size does not
  /// show it then. nil if the offset is the number of bytes kept.
  package var ownOffset: UInt64?
  /// An offset that was announced. The true one is at least this.
  package var promised: UInt64 = 0
  /// The boot of the machine in which bytes may have been acknowledged before they were on the disk; nil if all are on
  /// the disk.
  package var unsyncedBoot: String?
  /// Identifies the upload of this record. Record files are reused, and after a power failure one may contain the
  /// record of another upload. nil in records of earlier servers.
  package var token: String?
  package var deactivation: Deactivation?
  package var response: Response?
  /// Whether this was read from a text with credentials, as earlier versions wrote it. It must be written again.
  package private(set) var holdsSecrets = false

  package init(
    method: String, target: String, fields: HeaderFields, created: Int64, credential: [UInt8]?, client: String,
    limits: UploadLimits
  ) {
    self.limits = limits
    self.method = method
    self.target = target
    self.fields = fields
    self.created = created
    self.credential = credential
    self.client = client
  }

  private static let format: Int64 = 1

  // MARK: Text

  /// The record's text; nil if a value exceeds the range of a structured field.
  package var text: String? { text(keepingSecrets: false) }

  private func text(keepingSecrets: Bool) -> String? {
    var lines: [String] = []
    var isWhole = true
    func add(_ name: String, _ item: Item) {
      guard let value = item.serialized else {
        isWhole = false
        return
      }
      lines.append("\(name): \(value)\n")
    }
    func add(_ name: String, _ fields: HeaderFields) {
      for line in fields.all where keepingSecrets || !SecretFields.contains(line.name) {
        add(name, Item(.displayString(line.value), [Parameter(key: "name", value: .displayString(line.name))]))
      }
    }
    func count(_ value: UInt64) -> Item { Item(.integer(Int64(clamping: value))) }
    add("Upload-Record", Item(.integer(Self.format)))
    if let token { add("Token", Item(.displayString(token))) }
    add("Created", Item(.date(created)))
    add("Method", Item(.displayString(method)))
    add("Target", Item(.displayString(target)))
    add("Field", fields)
    if let credential { add("Credential", Item(.bytes(credential))) }
    add("Client", Item(.displayString(client)))
    add("Limits", Item(.string(limits.value())))
    if let length { add("Length", count(length)) }
    add("Begun", Item(.boolean(hasBegun)))
    add("Owns-File", Item(.boolean(ownsFile)))
    if !isLive { add("Live", Item(.boolean(false))) }
    add("Promised", count(promised))
    if let ownOffset { add("Offset", count(ownOffset)) }
    if let unsyncedBoot { add("Unsynced", Item(.displayString(unsyncedBoot))) }
    if let deactivation { add("Deactivated", Item(.token(deactivation.rawValue))) }
    if let response {
      add("Response-Status", Item(.integer(Int64(response.status))))
      add("Response-Field", response.fields)
      add("Response-Body", Item(.bytes(response.body)))
    }
    // Marks the end, so that a truncated file is not read as a record.
    add("End", Item(.boolean(true)))
    return isWhole ? lines.joined() : nil
  }

  /// Reads a record; nil for anything that ``text`` would not have written, because a guess would be worse.
  package init?(parsing text: String) {
    var values: [(name: String, item: Item)] = []
    for line in text.split(separator: "\n", omittingEmptySubsequences: false).dropLast() {
      guard let colon = line.firstIndex(of: ":"), let item = Item(parsing: String(line[line.index(after: colon)...]))
      else { return nil }
      values.append((String(line[..<colon]), item))
    }
    guard text.hasSuffix("\n"), values.last?.name == "End" else { return nil }
    func single(_ name: String) -> BareItem? { values.first { $0.name == name }?.item.value }
    func string(_ name: String) -> String? {
      if case .displayString(let text)? = single(name) { text } else { nil }
    }
    func count(_ name: String) -> UInt64? {
      if case .integer(let count)? = single(name), count >= 0 { UInt64(count) } else { nil }
    }
    guard single("Upload-Record") == .integer(Self.format), let method = string("Method"),
      let target = string("Target"),
      let fields = Self.fields("Field", values), case .date(let created)? = single("Created"),
      let client = string("Client"),
      case .string(let limitsText)? = single("Limits"),
      let limits = UploadLimits([UploadFields.limit: limitsText]), case .boolean(let hasBegun)? = single("Begun"),
      case .boolean(let ownsFile)? = single("Owns-File"),
      let promised = count("Promised")
    else { return nil }
    self.init(
      method: method, target: target, fields: fields, created: created, credential: nil, client: client, limits: limits)
    (self.hasBegun, self.ownsFile, self.promised) = (hasBegun, ownsFile, promised)
    if case .bytes(let credential)? = single("Credential") { self.credential = credential }
    length = count("Length")
    ownOffset = count("Offset")
    isLive = single("Live") != .boolean(false)
    unsyncedBoot = string("Unsynced")
    token = string("Token")
    if case .token(let cause)? = single("Deactivated") {
      guard let deactivation = Deactivation(rawValue: cause) else { return nil }
      self.deactivation = deactivation
    }
    if let status = count("Response-Status") {
      guard status <= 999, let fields = Self.fields("Response-Field", values),
        case .bytes(let body)? = single("Response-Body")
      else { return nil }
      response = Response(status: Int(status), fields: fields, body: body)
    }
    // The next write would lose anything not understood above. Such a file is not one of ours.
    guard self.text(keepingSecrets: true) == text else { return nil }
    holdsSecrets = (self.fields.all + (response?.fields.all ?? [])).contains { SecretFields.contains($0.name) }
  }

  private static func fields(_ name: String, _ values: [(name: String, item: Item)]) -> HeaderFields? {
    var fields = HeaderFields()
    for value in values where value.name == name {
      guard case .displayString(let text) = value.item.value, value.item.parameters.count == 1,
        case .displayString(let fieldName) = value.item.parameters[0].value
      else { return nil }
      fields.append(fieldName, text)
    }
    return fields
  }
}
