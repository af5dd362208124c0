// A program's request for a transfer, with everything that the agent must know after the program has ended.

package import JSONLines

/// A transfer as it is submitted to the agent and kept in its database. It is as secret as its URL, fields and token.
package struct TransferRequest: Equatable, Sendable {
  package enum Kind: String, CaseIterable, Sendable {
    case upload
    case download

    /// Nil for an unknown kind. Agents of versions without downloads omit it.
    init?(_ line: FlatJSON) {
      guard let text = line.string("kind") else {
        self = .upload
        return
      }
      self.init(rawValue: text)
    }
  }

  /// Chosen by the program and different for each transfer, so that a request submitted twice is not two transfers.
  package var key: String
  /// The owner of the transfer: the identifier of a background session, or empty for the command.
  package var session = ""
  /// The program's own number for it, unique in its session.
  package var task: Int64 = 0
  package var kind = Kind.upload
  package var url: String
  package var method = "PUT"
  package var mayUsePOST = false
  /// `Name: value`
  package var fields: [String] = []
  /// The absolute path of the file to upload, or of the destination of a download. Empty for a download that the agent
  /// keeps until its end is acknowledged.
  package var path: String
  /// The identity of the file when the program looked (``FileStamp``). Another one is refused. Nil for any.
  package var file: String?
  /// The program's own text, which is returned to it.
  package var note: String?
  /// Whether a redirect has led to the URL from another origin, whose secrets are not sent there. The agent returns it
  /// to the program.
  package var isAtOtherOrigin = false

  // MARK: Reaching the server

  /// Read before each request, an absolute path.
  package var tokenFile: String?
  package var token: String?
  package var netrcFile: String?
  package var proxy: String?
  package var unixSocket: String?
  package var certificateAuthorities: String?
  package var clientCertificate: String?
  package var clientKey: String?
  /// 4 or 6; nil for both.
  package var addressFamily: Int?
  package var usesHTTP1 = false
  /// In milliseconds, like all times here.
  package var connectLimit: Int64?
  package var stallLimit: Int64?
  package var responseLimit: Int64?

  // MARK: Uploading

  /// `auto`, `always` or `never`
  package var resumable = "auto"
  package var streamID: String?
  package var digest: String?
  package var keepsOrigin = false
  package var rollOverAfter: Int64?
  package var rollOverSize: UInt64?
  package var giveUpOnRefusalAfter: Int64?
  /// The longest pause between two attempts.
  package var longestPause: Int64?

  // MARK: Downloading

  /// The path of an incomplete download, which the agent chooses.
  package var part: String?
  /// The permissions of the file, regardless of the umask of the agent's process.
  package var permissions: UInt32?
  /// Whether to replace an existing file of that name.
  package var replaces = false
  /// The part left by an earlier download (`DownloadCheckpoint`).
  package var resumeData: String?

  // MARK: Scheduling

  /// The earliest beginning, in milliseconds since 1970.
  package var earliestBegin: Int64?
  /// The deadline after which the transfer fails, in milliseconds since 1970.
  package var deadline: Int64?
  /// Whether it may run on a network where bytes cost money.
  package var allowsExpensive = true
  /// Whether it may run on a network that the user wants to use sparingly.
  package var allowsConstrained = true
  /// Whether it can wait for a good time. It runs after others, and not where bytes cost money.
  package var isDiscretionary = false
  /// The number of bytes that the program expects. Small discretionary transfers come first.
  package var expectedToSend: Int64?
  package var expectedToReceive: Int64?

  /// Whether the agent keeps the downloaded file.
  package var isKept: Bool { kind == .download && path.isEmpty }

  /// Whether it depends on the kind of network.
  package var hasConditions: Bool { !allowsExpensive || !allowsConstrained || isDiscretionary }

  package init(key: String, url: String, path: String) { (self.key, self.url, self.path) = (key, url, path) }

  // MARK: As a line

  /// Adds all fields to a line.
  package func add(to line: inout JSONLine) {
    line.add("key", key)
    line.add("session", session)
    line.add("task", task)
    line.add("kind", kind.rawValue)
    line.add("url", url)
    line.add("method", method)
    line.add("may-use-post", mayUsePOST)
    line.add("fields", fields)
    line.add("path", path)
    line.add("file", file)
    line.add("note", note)
    line.add("other-origin", isAtOtherOrigin)
    line.add("token-file", tokenFile)
    line.add("token", token)
    line.add("netrc-file", netrcFile)
    line.add("proxy", proxy)
    line.add("unix-socket", unixSocket)
    line.add("ca-file", certificateAuthorities)
    line.add("cert", clientCertificate)
    line.add("cert-key", clientKey)
    line.add("address-family", addressFamily)
    line.add("http1", usesHTTP1)
    line.add("connect-limit", connectLimit)
    line.add("stall-limit", stallLimit)
    line.add("response-limit", responseLimit)
    line.add("resumable", resumable)
    line.add("stream-id", streamID)
    line.add("digest", digest)
    line.add("keeps-origin", keepsOrigin)
    line.add("roll-over-after", rollOverAfter)
    line.add("roll-over-size", rollOverSize)
    line.add("give-up-on-refusal", giveUpOnRefusalAfter)
    line.add("longest-pause", longestPause)
    line.add("part", part)
    line.add("permissions", permissions)
    line.add("replaces", replaces)
    line.add("resume-data", resumeData)
    line.add("earliest-begin", earliestBegin)
    line.add("deadline", deadline)
    line.add("allows-expensive", allowsExpensive)
    line.add("allows-constrained", allowsConstrained)
    line.add("discretionary", isDiscretionary)
    line.add("expected-to-send", expectedToSend)
    line.add("expected-to-receive", expectedToReceive)
  }

  /// Nil if something is missing, or the path is not absolute.
  package init?(_ line: FlatJSON) {
    guard let key = line.string("key"), !key.isEmpty, key.utf8.count <= 128, let session = line.string("session"),
      let url = line.string("url"), let method = line.string("method"), let path = line.string("path"),
      let kind = Kind(line), !path.utf8.contains(0),
      path.utf8.first == UInt8(ascii: "/") || kind == .download && path.isEmpty
    else { return nil }
    self.init(key: key, url: url, path: path)
    (self.session, self.kind, self.method) = (session, kind, method)
    task = line.integer("task") ?? 0
    mayUsePOST = line.flag("may-use-post") ?? false
    fields = line.strings("fields") ?? []
    (file, note) = (line.string("file"), line.string("note"))
    isAtOtherOrigin = line.flag("other-origin") ?? false
    (tokenFile, token) = (line.string("token-file"), line.string("token"))
    (netrcFile, proxy, unixSocket) = (line.string("netrc-file"), line.string("proxy"), line.string("unix-socket"))
    certificateAuthorities = line.string("ca-file")
    (clientCertificate, clientKey) = (line.string("cert"), line.string("cert-key"))
    addressFamily = line.integer("address-family")
    usesHTTP1 = line.flag("http1") ?? false
    connectLimit = line.integer("connect-limit")
    (stallLimit, responseLimit) = (line.integer("stall-limit"), line.integer("response-limit"))
    resumable = line.string("resumable") ?? "auto"
    (streamID, digest) = (line.string("stream-id"), line.string("digest"))
    keepsOrigin = line.flag("keeps-origin") ?? false
    (rollOverAfter, rollOverSize) = (line.integer("roll-over-after"), line.integer("roll-over-size"))
    giveUpOnRefusalAfter = line.integer("give-up-on-refusal")
    longestPause = line.integer("longest-pause")
    (part, resumeData) = (line.string("part"), line.string("resume-data"))
    (permissions, replaces) = (line.integer("permissions"), line.flag("replaces") ?? false)
    (earliestBegin, deadline) = (line.integer("earliest-begin"), line.integer("deadline"))
    allowsExpensive = line.flag("allows-expensive") ?? true
    allowsConstrained = line.flag("allows-constrained") ?? true
    isDiscretionary = line.flag("discretionary") ?? false
    expectedToSend = line.integer("expected-to-send")
    expectedToReceive = line.integer("expected-to-receive")
  }
}
