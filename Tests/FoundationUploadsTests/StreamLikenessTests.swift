import FoundationUploads
import Glibc
import NetworkTesting
import PropertyTesting
import Testing

@testable import FoundationUploadsCore

@Suite("Bound streams and Foundation's own streams")
struct StreamLikenessTests {
  /// The observable state of a stream.
  struct Look: Equatable {
    var result: Int?
    var status: Stream.Status
    var isReady: Bool
    var errorDomain: String?

    init(_ stream: Stream, result: Int? = nil) {
      self.result = result
      status = stream.streamStatus
      isReady = (stream as? InputStream)?.hasBytesAvailable ?? (stream as? OutputStream)?.hasSpaceAvailable ?? false
      // Foundation's streams crash when asked for an error that they do not have.
      errorDomain = status == .error ? (stream.streamError as NSError?)?.domain : nil
    }
  }

  @Test("an input stream behaves like one over data", arguments: Seed.several(200))
  func input(_ seed: Seed) throws {
    var generator = seed.generator
    let bytes = (0..<Int.random(in: 0...20, using: &generator)).map { UInt8($0) }
    let pair = try Pair()
    pair.output.open()
    if !bytes.isEmpty { #expect(pair.output.write(bytes, maxLength: bytes.count) == bytes.count) }
    pair.output.close()
    let model = InputStream(data: Data(bytes))
    // Foundation detects an empty stream at the first read, while a pair knows its end at once.
    var isSettled = !bytes.isEmpty
    for _ in 0..<12 {
      let (mine, theirs): (Look, Look)
      switch Int.random(in: 0..<8, using: &generator) {
      case 0, 1: (mine, theirs) = (look(pair.input) { $0.open() }, look(model) { $0.open() })
      case 2: (mine, theirs) = (look(pair.input) { $0.close() }, look(model) { $0.close() })
      default:
        let count = Int.random(in: 1...9, using: &generator)
        (mine, theirs) = (read(pair.input, count), read(model, count))
        isSettled = isSettled || mine.result == 0
      }
      if isSettled || theirs.status != .open { #expect(mine == theirs) }
    }
  }

  @Test("an output stream behaves like one to memory", arguments: Seed.several(200))
  func output(_ seed: Seed) throws {
    var generator = seed.generator
    let pair = try Pair()
    let model = OutputStream(toMemory: ())
    for _ in 0..<12 {
      let (mine, theirs): (Look, Look)
      switch Int.random(in: 0..<8, using: &generator) {
      case 0, 1: (mine, theirs) = (look(pair.output) { $0.open() }, look(model) { $0.open() })
      case 2: (mine, theirs) = (look(pair.output) { $0.close() }, look(model) { $0.close() })
      default:
        let bytes = [UInt8](repeating: 1, count: Int.random(in: 1...9, using: &generator))
        (mine, theirs) = (write(pair.output, bytes), write(model, bytes))
      }
      #expect(mine == theirs)
    }
  }

  @Test("a failure has the error of a full disk, and stays")
  func failure() throws {
    let pair = try Pair()
    let model = try #require(OutputStream(toFileAtPath: "/dev/full", append: true))
    pair.input.open()
    pair.output.open()
    model.open()
    // A session does this when the upload that reads the stream has failed.
    try #require(pair.input as? BoundInputStream).pair.failInputEnd("the upload failed")
    _ = write(model, [1])
    #expect(write(pair.output, [1]) == write(model, [1]))
    #expect(look(pair.output) { $0.close() } == look(model) { $0.close() })
    let error = try #require(pair.output.streamError as NSError?)
    #expect(error.code == Int(EPIPE))
    #expect(error.localizedDescription == "the upload failed")
  }

  private func look(_ stream: Stream, _ action: (Stream) -> Void) -> Look {
    action(stream)
    return Look(stream)
  }

  private func read(_ stream: InputStream, _ count: Int) -> Look {
    var buffer = [UInt8](repeating: 0, count: count)
    let result = stream.read(&buffer, maxLength: count)
    return Look(stream, result: result)
  }

  private func write(_ stream: OutputStream, _ bytes: [UInt8]) -> Look {
    let result = stream.write(bytes, maxLength: bytes.count)
    return Look(stream, result: result)
  }
}
