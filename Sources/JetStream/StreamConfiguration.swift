// What a JetStream stream must be like so that it never drops a message that it has acknowledged.

/// The settings of a stream, as far as they decide about that. Pure: an answer of the broker in, a judgement out.
struct StreamConfiguration {
  /// How a stream that is missing is created: messages stay until somebody purges them, on disk, and a full stream
  /// refuses new ones. (JetStream's default is to discard old ones, acknowledged or not.)
  static func json(name: String, replicas: Int) -> String {
    """
    {"name":"\(name)","subjects":["\(name).*"],"retention":"limits","storage":"file","discard":"new","max_age":0,\
    "max_bytes":-1,"max_msgs":-1,"max_msgs_per_subject":-1,"max_msg_size":-1,"max_consumers":-1,\
    "num_replicas":\(replicas)}
    """
  }

  private let json: APIReply

  init(_ json: APIReply) { self.json = json }

  /// The longest message that the stream takes, in bytes; nil for no limit of its own.
  var maximumMessageLength: Int? { json.integer("max_msg_size").flatMap { $0 > 0 ? Int(clamping: $0) : nil } }

  /// Why messages that are acknowledged may be lost there, or go elsewhere; nil if none.
  func flaw(name: String, replicas: Int) -> String? {
    if json.text("storage") != "file" { return "it keeps messages in memory, and not in files" }
    if json.text("retention") != "limits" { return "its retention policy drops messages that consumers have read" }
    if json.text("discard") != "new" { return "it discards old messages when it is full, and not new ones" }
    if json.integer("max_age") ?? 0 > 0 { return "it drops messages after a time (max_age)" }
    if json.integer("max_msgs_per_subject") ?? -1 > 0 {
      return "it keeps only some messages of each subject (max_msgs_per_subject)"
    }
    if json.flag("no_ack") { return "it does not acknowledge messages (no_ack)" }
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
