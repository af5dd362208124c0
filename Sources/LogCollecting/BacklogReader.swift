// Reads messages again for streams that have waited. Meanwhile, the other streams get new messages from another reader.

internal import JetStream
internal import StreamServing

/// Reads the log from the first message on that a lane has forgotten, until the lane has all messages that were
/// distributed. Only on the loop's thread.
///
/// It serves several lanes at once. A lane that waits again leaves it, so that it does not delay the others.
final class BacklogReader {
  private unowned let collection: Collection
  private let distributor: MessageDistributor
  private let stream: MessageStream
  private let created: String
  private var reader: MessageReader?
  /// The lanes that get its messages.
  private var lanes: [StreamName: StreamLane] = [:]
  /// The sequence of the last message that was read.
  private var position: UInt64 = 0

  /// - Parameter created: when the JetStream stream was made.
  init(_ collection: Collection, _ distributor: MessageDistributor, _ stream: MessageStream, created: String) {
    self.collection = collection
    (self.distributor, self.stream, self.created) = (distributor, stream, created)
  }

  /// Reads for lanes that have a backlog and no other message. Those whose backlog begins earlier in the log than the
  /// next message are served after the present ones.
  func serve(_ ready: [StreamLane]) {
    guard let first = ready.compactMap(\.backlog).min() else { return }
    // Sequences begin at 1.
    if reader == nil { begin(after: max(first, 1) - 1) }
    for lane in ready where (lane.backlog ?? 0) > position { lanes[lane.name] = lane }
  }

  /// Called when a lane has forgotten messages again.
  func leave(_ lane: StreamLane) {
    guard lanes.removeValue(forKey: lane.name) != nil, lanes.isEmpty else { return }
    stop()
    collection.serveBacklogs()
  }

  func stop() {
    reader?.stop()
    (reader, lanes) = (nil, [:])
  }

  private func begin(after sequence: UInt64) {
    position = sequence
    let reader = MessageReader(
      stream, after: sequence, nil, created: created, identify: MessageDistributor.mark,
      handle: { [unowned self] in happened($0) })
    self.reader = reader
    reader.want(MessageDistributor.window)
  }

  private func happened(_ event: MessageReader.Event) {
    switch event {
    case .message(let message, _): received(message)
    case .caughtUp: confirmEnd()
    // The distributor's reader reports it, and this one retries.
    case .interrupted: break
    case .rewound: collection.rewind()
    case .recreated, .failed: distributor.happened(event)
    }
  }

  private func received(_ message: StoredMessage) {
    // The lanes get this one from the distributor's reader.
    guard message.sequence <= distributor.lastDistributed else { return end() }
    position = message.sequence
    let present = reader
    let item = distributor.item(again: message, from: present) { name in
      lanes[name]?.backlog.map { $0 <= message.sequence } ?? false
    }
    if let item, let lane = lanes[item.upload.name] {
      lane.addAgain(item)
    } else {
      present?.want(1)
    }
    // If the last lane has left, there is no reader or another one.
    if present === reader, position == distributor.lastDistributed { end() }
  }

  /// A broker that is behind may have fewer messages than the log, so the one that leads the log is asked.
  private func confirmEnd() {
    let (reader, distributed) = (reader, distributor.lastDistributed)
    stream.message(of: "*", from: position + 1) { [weak self] answer in
      guard let self, let reader, reader === self.reader, case .success(let next) = answer else { return }
      // More may have been distributed meanwhile.
      if next.map({ $0.sequence > self.distributor.lastDistributed }) ?? (distributed == distributor.lastDistributed) {
        end()
      }
    }
  }

  /// The lanes have all messages that were distributed.
  private func end() {
    let served = Array(lanes.values)
    stop()
    collection.caughtUp(served)
  }
}
