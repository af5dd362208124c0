// Compares the test microphone's frames with the recording of a server as it grows, for a week.

internal import Glibc
internal import NetworkTesting
internal import TestDeviceControl

/// Reads a stream's recordings as they grow, and frees the disk space of the compared part.
package struct StoredTimeline {
  private struct Recording {
    let name: String
    /// -1 after the whole recording was compared.
    var descriptor: Int32
    /// The difference between a stream offset and the position of its byte. The header of a later part does not belong
    /// to the stream.
    let base: Int
    /// The number of bytes read so far, header included.
    var position = 0
    /// The first piece stays, because the server copies its header into the next part.
    var punched = StoredTimeline.pieceLength
  }

  package static let headerLength = 80
  private static let pieceLength = 1 << 20
  private let directory: String
  /// The stream offset at which a later part begins; nil while that is unknown.
  private let beginning: (_ recording: String) -> Int?
  private var recordings: [Recording] = []

  /// Stream offsets.
  private var silences: [Range<Int>] = []
  /// The next frame of the microphone, and whether the last frame was the microphone's.
  private var nextFrame: UInt64 = 0
  private var isSound = false
  private var hasLostHeader = false
  /// The last samples of a recording, if they are too few to be located. After a split, the next recording continues
  /// them: the server stores a single frame after a hole before it splits.
  private var tail: (recording: Int, samples: [Int16], place: String) = (-1, [], "")

  package init(_ directory: String, beginning: @escaping (_ recording: String) -> Int?) {
    self.directory = directory
    self.beginning = beginning
  }

  package var count: Int { recordings.count }

  /// The bytes of the stream that are in the recordings.
  package var stored: OffsetSet {
    OffsetSet(
      recordings.enumerated().map { index, recording in
        let start = index == 0 ? 0 : min(Self.headerLength, recording.position)
        return recording.base + start..<recording.base + recording.position
      })
  }

  /// Silence that the microphone did not record.
  package var silent: OffsetSet { OffsetSet(silences) }

  /// The newest recording, and how many of its bytes were compared.
  var newest: (path: String, compared: Int)? {
    recordings.last.map { ("\(directory)/\($0.name).part", $0.position) }
  }

  /// Processes what has been stored so far.
  ///
  /// - Parameter isLast: whether writing has ended.
  /// - Throws: ``TestFailure`` if anything is stored except the microphone's frames, in order, and silence.
  package mutating func advance(isLast: Bool = false) throws {
    try findNew(isLast: isLast)
    for index in recordings.indices where recordings[index].descriptor >= 0 {
      // Later bytes are in the newest one.
      while try readPiece(index, isLast: isLast) {}
      punch(index)
      // The server copies the header of the first one and of the newest ones.
      if index > 0, index + 2 < recordings.count { release(index) }
    }
    if isLast { try refuseTail() }
  }

  /// A recording `kitchen-ID.part` becomes `kitchen-ID.wav`; the next part is `kitchen-ID~2`.
  private mutating func findNew(isLast: Bool) throws {
    let names = try fileNames(in: directory).filter { $0.hasSuffix(".part") || $0.hasSuffix(".wav") }
    let stems = Set(names.map { String($0[..<($0.lastIndex(of: ".") ?? $0.endIndex)]) })
    for stem in stems.sorted(by: { Self.number($0) < Self.number($1) })
    where !recordings.contains(where: { $0.name == stem }) {
      var base = 0
      if stem.contains("~") {
        guard let start = beginning(stem) else {
          // The server's event about it has yet to be read.
          guard isLast else { return }
          throw TestFailure("no server has begun \(stem)")
        }
        base = start - Self.headerLength
      }
      var found = open("\(directory)/\(stem).part", O_RDWR | O_CLOEXEC)
      if found < 0 { found = open("\(directory)/\(stem).wav", O_RDWR | O_CLOEXEC) }
      // It was renamed meanwhile, and the next attempt will find it.
      guard found >= 0 else { return }
      recordings.append(Recording(name: stem, descriptor: found, base: base))
    }
  }

  /// A part begins where the client knew the end of the previous one. The server may have stored more of that. After a
  /// split, it begins exactly at the end.
  private mutating func beginPart(_ index: Int) throws {
    let (last, start) = (recordings[index - 1], recordings[index].base + Self.headerLength)
    if last.base + last.position == start { return }
    try refuseTail()
    isSound = false
    nextFrame -= min(nextFrame, UInt64(max(0, last.base + last.position - start) + 1) / 2)
  }

  /// No recording continues these samples.
  private func refuseTail() throws {
    if !tail.samples.isEmpty { throw TestFailure("\(tail.place): frames that are nobody's") }
  }

  private static func number(_ stem: String) -> Int {
    stem.lastIndex(of: "~").flatMap { Int(stem[stem.index(after: $0)...]) } ?? 1
  }

  /// Returns whether there may be more.
  ///
  /// - Parameter isLast: whether no recording grows anymore.
  private mutating func readPiece(_ index: Int, isLast: Bool) throws -> Bool {
    let descriptor = recordings[index].descriptor
    var position = recordings[index].position
    if position == 0 {
      var header = [UInt8](repeating: 0, count: Self.headerLength)
      guard pread(descriptor, &header, header.count, 0) == header.count else { return false }
      if header.allSatisfy({ $0 == 0 }), index == 0 || hasLostHeader {
        // Lost with the bytes after it, before the first connection. Later parts have a copy of it.
        hasLostHeader = true
        if index == 0 { noteSilence(0, header.count) }
      } else if !header.starts(with: Array("RIFF".utf8)) {
        throw TestFailure("\(recordings[index].name) has no header")
      }
      position = header.count
      if index > 0 { try beginPart(index) }
    }
    // As long as there are some, none of this recording was processed.
    let held = tail.recording == index - 1 ? tail.samples : []
    var samples = held + [Int16](repeating: 0, count: Self.pieceLength / 2)
    let count = samples.withUnsafeMutableBytes {
      pread(descriptor, $0.baseAddress.map { $0 + 2 * held.count }, Self.pieceLength, off_t(position))
    }
    guard count >= 0 else { throw TestFailure("\(recordings[index].name): \(String(cString: strerror(errno)))") }
    let known = held.count + count / 2
    let hasNext = index + 1 < recordings.count
    // The end of the present content is still ambiguous.
    let isEnd = isLast && !hasNext && count < Self.pieceLength
    let (name, base) = (recordings[index].name, recordings[index].base)
    let first = position - 2 * held.count
    let consumed = try samples.withUnsafeBufferPointer { all in
      try take(UnsafeBufferPointer(rebasing: all[..<known]), of: name, at: first, base, isEnd: isEnd)
    }
    if hasNext, count < Self.pieceLength {
      // The recording does not grow anymore.
      recordings[index].position = position + 2 * (count / 2)
      if consumed < known || !held.isEmpty {
        tail = (index, Array(samples[consumed..<known]), "\(name), byte \(first + 2 * consumed)")
      }
    } else {
      recordings[index].position = position + 2 * max(0, consumed - held.count)
      // All of them or none, because they are fewer than it takes to locate them.
      if consumed > 0, !held.isEmpty { tail.samples = [] }
    }
    return consumed > 0 && count == Self.pieceLength
  }

  /// Returns how many samples were processed.
  private mutating func take(
    _ samples: UnsafeBufferPointer<Int16>, of name: String, at position: Int, _ offset: Int, isEnd: Bool
  ) throws -> Int {
    guard let first = samples.baseAddress else { return 0 }
    let place = offset + position
    var at = 0
    while at < samples.count {
      var start = at
      if isSound {
        let count = testmic_matching(first + at, samples.count - at, 1, nextFrame)
        at += count
        nextFrame += UInt64(count)
        guard at < samples.count else { break }
        isSound = false
        start = at
        // A loss may begin within a frame.
        let isHalf = samples[at] != 0 && samples[at] == testmic_sample(1, nextFrame, 0) & 0xff
        if isHalf { at += 1 }
        noteSilence(place + 2 * start + (isHalf ? 1 : 0), place + 2 * at)
      }
      let silent = testmic_silent(first + at, samples.count - at)
      guard let sound = try locate(samples, at + silent, isEnd: isEnd, "\(name), byte \(position + 2 * (at + silent))")
      else {
        noteSilence(place + 2 * at, place + 2 * (at + silent))
        return at + silent
      }
      // A frame of the microphone may also be silent.
      var (frame, found) = sound
      while !found.isHalf, found.index > at, frame > nextFrame, testmic_sample(1, frame - 1, 0) == 0 {
        (found.index, frame) = (found.index - 1, frame - 1)
      }
      noteSilence(place + 2 * at, place + 2 * found.index - (found.isHalf ? 1 : 0))
      (nextFrame, isSound, at) = (frame, true, found.index)
    }
    return at
  }

  /// The frame number and the position of the first sample after a silence. A loss may end within the previous frame.
  /// Nil while this is ambiguous.
  private func locate(
    _ samples: UnsafeBufferPointer<Int16>, _ index: Int, isEnd: Bool, _ place: @autoclosure () -> String
  ) throws -> (frame: UInt64, place: (index: Int, isHalf: Bool))? {
    guard samples.count - index > Int(TESTMIC_LOCATE), let base = samples.baseAddress else {
      // The last frames of a recording.
      if isEnd, index < samples.count { throw TestFailure("\(place()): frames that are nobody's") }
      return nil
    }
    var frame: UInt64 = 0
    var found = (index: index, isHalf: false)
    if !testmic_locate(base + index, 1, &frame) {
      guard testmic_locate(base + index + 1, 1, &frame), frame > 0, samples[index] & 0xff == 0,
        samples[index] == testmic_sample(1, frame - 1, 0) & ~0xff
      else { throw TestFailure("\(place()): not the microphone's frames") }
      found = (index + 1, true)
    }
    guard frame >= nextFrame else {
      throw TestFailure("\(place()): frame \(frame) comes again; frame \(nextFrame) was due")
    }
    return (frame, found)
  }

  private mutating func noteSilence(_ start: Int, _ end: Int) {
    guard start < end else { return }
    if let last = silences.last, last.upperBound == start {
      silences[silences.count - 1] = last.lowerBound..<end
    } else {
      silences.append(start..<end)
    }
  }

  /// Frees the disk space of the compared part, in whole megabytes. The file's length does not change.
  private mutating func punch(_ index: Int) {
    let recording = recordings[index]
    let end = recording.position & ~(Self.pieceLength - 1)
    guard end > recording.punched else { return }
    let length = end - recording.punched
    let map = mmap(nil, length, PROT_READ | PROT_WRITE, MAP_SHARED, recording.descriptor, off_t(recording.punched))
    guard let map, map != MAP_FAILED else { return }
    defer { munmap(map, length) }
    if madvise(map, length, MADV_REMOVE) == 0 { recordings[index].punched = end }
  }

  /// Frees the disk space of a whole recording and closes its file, of which a long run with splits has hundreds.
  private mutating func release(_ index: Int) {
    let recording = recordings[index]
    let map = mmap(nil, recording.position, PROT_READ | PROT_WRITE, MAP_SHARED, recording.descriptor, 0)
    if let map, map != MAP_FAILED {
      madvise(map, recording.position, MADV_REMOVE)
      munmap(map, recording.position)
    }
    Glibc.close(recording.descriptor)
    recordings[index].descriptor = -1
  }

  /// Closes the files.
  package func close() {
    for recording in recordings where recording.descriptor >= 0 { Glibc.close(recording.descriptor) }
  }
}
