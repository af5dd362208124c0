// A reader of a stream of real brokers, for tests.

import BrokerTesting
import CallCounter
import EventLoops
import NetworkTesting

@testable import JetStream

/// A reader on a client's loop, and the messages that it has delivered.
final class Reading: @unchecked Sendable {
  let events: EventLog<String>
  private let loop: BrokerLoop
  /// Used on the loop's thread only.
  private var reader: MessageReader?

  /// - Parameter lacksThread: whether the first attempt to subscribe cannot start its thread.
  init(
    _ brokers: TestBroker..., of name: String = "s", after sequence: UInt64, _ identity: String? = nil, time: Int64 = 0,
    created: String? = nil, selection: MessageReader.Selection = .messages, wants count: Int = 1000,
    lacksThread: Bool = false
  ) throws {
    let events = try EventLog<String>()
    (self.events, loop) = (events, try BrokerLoop(.init(servers: brokers.map(\.url))))
    let _: Bool = try loop.wait("the reader") { [self] client, done in
      MessageStream.find(name, with: client) { found in
        guard let stream = try? found.get() else { return done(false) }
        if lacksThread {
          // It is not sent, which the sending thread reports before it subscribes.
          let large = MessageContent(payload: [UInt8](repeating: 0, count: 2 << 20))
          client.connection.send(large, to: "large", reply: "nobody") { error in
            if error == .messageTooLarge { refuse_next_thread_of_this_thread() }
          }
        }
        let made = MessageReader(
          stream, after: sequence, identity, time: time, created: created, selection: selection,
          identify: {
            selection == .messages ? String(decoding: $0.content.payload, as: UTF8.self) : $0.content["A"] ?? ""
          },
          handle: { event in
            switch event {
            case .message(let message, _):
              let length = message.content["Nats-Msg-Size"].map { " of \($0)" } ?? ""
              events.append(
                "\(message.sequence) \(String(decoding: message.content.payload, as: UTF8.self))\(length)")
            case .caughtUp: events.append("caught up")
            case .interrupted: events.append("interrupted")
            case .rewound: events.append("rewound")
            case .recreated(let created): events.append("recreated \(created)")
            case .failed(let error): events.append("failed: \(error)")
            }
          })
        self.reader = made
        made.want(count)
        done(true)
      }
    }
  }

  var connection: BrokerConnection { loop.connection }

  var messages: [String] { events.all.filter { $0.first?.isNumber == true } }

  func want(_ count: Int) throws {
    let _: Bool = try loop.wait("more") { [self] _, done in
      reader?.want(count)
      done(true)
    }
  }

  func stop() throws {
    let _: Bool = try loop.wait("the end") { [self] _, done in
      reader?.stop()
      reader = nil
      done(true)
    }
  }
}

extension TestStream {
  /// Publishes a message for each number, as the first one of a subject, and again until it is stored.
  func publish(_ numbers: Range<Int>) throws {
    for number in numbers {
      let content = MessageContent(headers: [.init("A", "b")], payload: Array("m\(number)".utf8))
      // While a broker starts, it has no stream yet.
      try waitUntil("message \(number) is published") {
        let token = "t\(number)"
        guard case .success(let last) = Result(catching: { try lastMessage(of: token) }) else {
          return false
        }
        if last != nil { return true }
        return (try? publish(content, to: token, after: 0).get()) != nil
      }
    }
  }
}
