// A client that loses no bytes if it follows the server's answers, and a check of what the server has at the end.

import Glibc
import NetworkTesting
import Recordings

/// A client of the protocol that sends `stream` with pauses. After each refusal it asks where to continue, and if its
/// upload is gone, it begins a next part.
final class ContinuingClient {
  var test: TestServer
  let stream: [UInt8]
  let version: Int
  /// Whether the last request ends only when the server has acknowledged all its bytes.
  let awaitsProgress: Bool
  var location: String?
  /// The stream offset at which the upload begins, and the number of acknowledged bytes.
  var (base, acknowledged) = (0, 0)
  var isComplete = false
  var trace: [String] = []

  init(_ test: TestServer, _ stream: [UInt8], _ version: Int, awaitsProgress: Bool) {
    (self.test, self.stream, self.version, self.awaitsProgress) = (test, stream, version, awaitsProgress)
  }

  /// Two steps that repeat forever appear once.
  private func note(_ text: String) {
    if trace.suffix(2).first != text { trace.append(text) }
  }

  func attempt() throws {
    guard let location else { return try create() }
    let client = try test.connect()
    try client.request("HEAD", location, version: version)
    let answer = try client.final(withBody: false).answer
    note("HEAD \(answer.status) \(answer["upload-offset"] ?? "-")")
    if [404, 410].contains(answer.status) {
      self.location = nil
      return
    }
    guard let offset = answer["upload-offset"].flatMap({ Int($0) }), answer.status < 300 else { return }
    try require(base + offset >= acknowledged, "HEAD takes back what was acknowledged: \(trace)")
    acknowledged = base + offset
    if answer["upload-complete"] == "?1" {
      // The server completed it before it could answer the last request.
      try require(acknowledged == stream.count, "it is complete with \(acknowledged) octets: \(trace)")
      isComplete = true
      return
    }
    try append(location, offset, client)
  }

  private func create() throws {
    base = acknowledged
    let client = try test.connect()
    try client.request(
      "POST", "/k.wav", version: version,
      ["Upload-Complete: ?0", "Stream-ID: a", "Stream-Offset: \(base)", "Content-Type: audio/wav"], body: "")
    let answer = try client.final().answer
    note("POST at \(base): \(answer.status)")
    location = answer.status == 201 ? answer["location"] : nil
  }

  private func append(_ location: String, _ offset: Int, _ client: RawClient) throws {
    let start = base + offset
    let end = min(stream.count, start + 900)
    let completes = end == stream.count
    try client.request(
      "PATCH", location, version: version,
      [
        "Content-Type: application/partial-upload", "Upload-Offset: \(offset)",
        "Upload-Complete: ?\(completes ? 1 : 0)",
      ],
      chunked: true)
    // The server syncs after each piece.
    for piece in stride(from: start, to: end, by: 150) {
      try? client.sendChunk(Array(stream[piece..<min(piece + 150, end)]))
      poll(nil, 0, 2)
    }
    var interim: [RawClient.Answer] = []
    var refusal: RawClient.Answer?
    while completes, awaitsProgress, refusal == nil, interim.last?["upload-offset"] != "\(end - base)" {
      guard let next = try client.unlessCutOff({ try client.answer() }) else { return note("PATCH \(offset): closed") }
      if next.status < 200 { interim.append(next) } else { refusal = next }
    }
    try? client.send("0\r\n\r\n")
    let last: (answer: RawClient.Answer, interim: [RawClient.Answer])? =
      try refusal.map { ($0, []) } ?? client.unlessCutOff { try client.final() }
    guard let (answer, rest) = last else { return note("PATCH \(offset): closed") }
    interim += rest
    let reason = answer.status < 400 ? "" : " \(answer.body.prefix(100))"
    note("PATCH \(offset): \(interim.compactMap { $0["upload-offset"] }) \(answer.status)\(reason)")
    for told in interim.compactMap({ $0["upload-offset"] }).compactMap({ Int($0) }) {
      acknowledged = max(acknowledged, base + told)
    }
    guard answer.status < 300 else { return }
    if let told = answer["upload-offset"] {
      try require(told == "\(end - base)", "a 2xx for less than was sent: \(answer) \(trace)")
    }
    acknowledged = end
    isComplete = completes
  }

  /// Checks that each byte of the stream is in a complete recording at its place, and that no other bytes are stored.
  ///
  /// - Parameters:
  ///   - head: the size of the stream's header, with which each recording begins.
  ///   - unreliable: the recordings that may also hold other bytes, because the disk has refused some of them.
  func requireStored(
    in directory: TemporaryDirectory, head: Int, unreliable: Set<String> = [], _ context: String
  ) throws {
    var stored = [Bool](repeating: false, count: stream.count)
    for name in directory.names where name.hasPrefix("k-a") && name.hasSuffix(".wav") {
      let sidecar = try RecordingSidecar(parsing: try directory.contents(String(name.dropLast(4)) + ".sidecar"))
      let bytes = try directory.contents(name)
      let start = max(Int(sidecar.offset), head)
      let samples = bytes.count - min(bytes.count, head)
      for index in stored.indices.prefix(head) { stored[index] = true }
      try require(start + samples <= stream.count, "\(name) is too long: \(context)")
      for (index, byte) in zip(start..<(start + samples), bytes.dropFirst(head)) {
        if byte == stream[index] { stored[index] = true }
        try require(byte == stream[index] || unreliable.contains(name), "\(name) holds something else: \(context)")
      }
    }
    try require(stored.allSatisfy(\.self), "bytes from \(stored.firstIndex(of: false) ?? 0) are not stored: \(context)")
  }
}
