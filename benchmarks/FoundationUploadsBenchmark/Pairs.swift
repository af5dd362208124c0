// Bytes between two threads: through a bound pair with delegates on two run loops, and through pipe(2).

import Dispatch
import FoundationUploads

/// Writes whatever the pair has space for, and reads whatever it has bytes for, each on the run loop of its own thread.
private final class PairContest: NSObject, StreamDelegate, @unchecked Sendable {
  private let input: InputStream
  private let output: OutputStream
  private let piece: [UInt8]
  private let room: UnsafeMutableBufferPointer<UInt8>
  private var unwritten: Int
  private(set) var received = 0
  private let done = DispatchSemaphore(value: 0)

  init(bytes: Int, bufferSize: Int) {
    var (input, output): (InputStream?, OutputStream?)
    Stream.getBoundStreams(withBufferSize: bufferSize, inputStream: &input, outputStream: &output)
    guard let input, let output else { fatalError("getBoundStreams gives two streams, always") }
    (self.input, self.output) = (input, output)
    piece = [UInt8](repeating: 0x55, count: bufferSize)
    room = .allocate(capacity: bufferSize)
    unwritten = bytes
  }

  deinit { room.deallocate() }

  /// Returns when the reader has seen the end.
  func run() {
    for isOutput in [true, false] {
      Thread.detachNewThread { [self] in
        let stream: Stream = isOutput ? output : input
        stream.delegate = self
        stream.schedule(in: .current, forMode: .default)
        stream.open()
        while stream.streamStatus != .closed, RunLoop.current.run(mode: .default, before: .distantFuture) {}
      }
    }
    done.wait()
  }

  func stream(_ aStream: Stream, handle eventCode: Stream.Event) {
    switch eventCode {
    case .hasSpaceAvailable:
      unwritten -= max(0, output.write(piece, maxLength: min(piece.count, unwritten)))
      if unwritten == 0 { output.close() }
    case .hasBytesAvailable:
      received += max(0, input.read(room.baseAddress!, maxLength: room.count))
    case .endEncountered where aStream === input:
      input.close()
      done.signal()
    default: break
    }
  }
}

/// fcntl(2), `F_SETPIPE_SZ`, which Glibc's module does not have.
private let setPipeSize: Int32 = 1031

/// The same through a pipe whose buffer has that size, with two threads that block.
private func runPipe(bytes: Int, bufferSize: Int) -> Int {
  var ends: [Int32] = [0, 0]
  guard pipe(&ends) == 0, fcntl(ends[1], setPipeSize, Int32(bufferSize)) >= 0 else {
    fatalError("no pipe of \(bufferSize) bytes: \(String(cString: strerror(errno)))")
  }
  let (reader, writer) = (ends[0], ends[1])
  Thread.detachNewThread {
    let piece = [UInt8](repeating: 0x55, count: bufferSize)
    var unwritten = bytes
    while unwritten > 0 { unwritten -= max(0, write(writer, piece, min(piece.count, unwritten))) }
    close(writer)
  }
  var room = [UInt8](repeating: 0, count: bufferSize)
  var received = 0
  while true {
    let count = read(reader, &room, room.count)
    guard count > 0 else { break }
    received += count
  }
  close(reader)
  return received
}

/// Prints the bytes per second of one of them.
func measureStreams(_ kind: String, bytes: Int, bufferSize: Int) {
  let clock = ContinuousClock()
  let start = clock.now
  let received: Int
  if kind == "pair" {
    let contest = PairContest(bytes: bytes, bufferSize: bufferSize)
    contest.run()
    received = contest.received
  } else {
    received = runPipe(bytes: bytes, bufferSize: bufferSize)
  }
  let time = clock.now - start
  precondition(received == bytes, "\(received) of \(bytes) bytes arrived")
  print(Double(bytes) / (time / .seconds(1)))
}

/// Makes that many pairs, one after the other, sends a byte through each, and prints the resident memory in KiB at each
/// tenth of them. A pair is dropped in one of three states: closed at both ends, at the writer's alone, or still open.
func countPairs(_ count: Int) {
  var byte: UInt8 = 0
  for number in 0..<count {
    var (input, output): (InputStream?, OutputStream?)
    Stream.getBoundStreams(withBufferSize: 4096, inputStream: &input, outputStream: &output)
    guard let input, let output else { fatalError("getBoundStreams gives two streams, always") }
    input.open()
    output.open()
    let sent = UInt8(truncatingIfNeeded: number)
    precondition(output.write([sent], maxLength: 1) == 1 && input.read(&byte, maxLength: 1) == 1 && byte == sent)
    if number % 3 != 0 { output.close() }
    if number % 3 == 1 { input.close() }
    if (number + 1) % max(1, count / 10) == 0 { print(residentKibibytes()) }
  }
}

/// This process's resident memory: proc(5), /proc/self/statm.
private func residentKibibytes() -> Int {
  let fields = (try? String(contentsOfFile: "/proc/self/statm", encoding: .ascii))?.split(separator: " ") ?? []
  return (fields.count > 1 ? Int(fields[1]) ?? 0 : 0) * Int(sysconf(Int32(_SC_PAGESIZE))) / 1024
}
