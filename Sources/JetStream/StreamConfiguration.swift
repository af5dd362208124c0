// The configuration that a JetStream stream needs, so that it never drops an acknowledged message.

/// The settings of a stream that determine this. Pure: takes an answer of the broker, and returns a verdict.
struct StreamConfiguration {
  /// The configuration of a new stream: messages are stored on disk until they are purged, and a full stream refuses
  /// new ones. (By default, JetStream discards old ones, acknowledged or not.)
  static func json(name: String, replicas: Int) -> String {
    """
    {"name":"\(name)","subjects":["\(name).*"],"retention":"limits","storage":"file","discard":"new","max_age":0,\
    "max_bytes":-1,"max_msgs":-1,"max_msgs_per_subject":-1,"max_msg_size":-1,"max_consumers":-1,\
    "num_replicas":\(replicas)}
    """
  }

  private let json: APIReply

  init(_ json: APIReply) { self.json = json }

  /// What a publisher must know.
  struct Publishing {
    /// The maximum length of a message, in bytes; nil if the stream has no limit of its own.
    var maximumMessageLength: Int?
    /// Whether several brokers store the messages. Then one that no longer leads the stream may not know it yet.
    var isReplicated: Bool
    /// Whether brokers may compare the expected sequence of a publish with the subject's last message before the
    /// messages in flight are stored, and not again. Then they store two messages after the same one. NATS before
    /// 2.9.21 does that if there are replicas (its commit 244dda809, "Fix bug that would race around check for last
    /// sequence per subject").
    var isCheckedTooEarly: Bool { isReplicated && isBefore210 }
    /// Whether the broker is older than NATS 2.10. Since then, brokers report the compression of a stream.
    var isBefore210: Bool
  }

  var publishing: Publishing {
    let isReplicated = json.integer("num_replicas") ?? 1 > 1
    return Publishing(
      maximumMessageLength: json.integer("max_msg_size").flatMap { $0 > 0 ? Int(clamping: $0) : nil },
      isReplicated: isReplicated, isBefore210: json.text("compression") == nil)
  }

  /// Why acknowledged messages may be lost there, or stored elsewhere; nil if they are safe.
  func flaw(name: String, replicas: Int) -> String? {
    if json.text("storage") != "file" { return "it keeps messages in memory, and not in files" }
    if json.text("retention") != "limits" { return "its retention policy drops messages that consumers have read" }
    if json.text("discard") != "new" { return "it discards old messages when it is full, and not new ones" }
    if json.integer("max_age") ?? 0 > 0 { return "it drops messages after a time (max_age)" }
    if json.integer("max_msgs_per_subject") ?? -1 > 0 {
      return "it keeps only some messages of each subject (max_msgs_per_subject)"
    }
    if json.flag("no_ack") { return "it does not acknowledge messages (no_ack)" }
    if let mode = json.text("persist_mode"), mode != "default" {
      return "it acknowledges messages before they are stored (persist_mode \(mode))"
    }
    if json["mirror"] != nil { return "it is a mirror, to which nothing can be published" }
    if json["subject_transform"] != nil { return "it renames the subjects of messages (subject_transform)" }
    if json.flag("sealed") { return "it is sealed: nothing can be added" }
    let covers: Set<String> = ["\(name).*", "\(name).>", ">"]
    if covers.isDisjoint(with: json.texts("subjects")) { return "it does not have the subjects \(name).*" }
    let found = json.integer("num_replicas") ?? 1
    if found < replicas { return "it has \(found) replicas, and not \(replicas)" }
    return nil
  }
}
