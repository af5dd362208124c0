// What a server stores of the test microphone for a week, compared with the microphone while it comes.

internal import Glibc
internal import NetworkTesting
internal import TestDeviceControl

/// Reads a stream's recordings as they grow, and takes the disk space back of what it has seen.
package struct StoredTimeline {
  private struct Recording {
    let name: String
    let descriptor: Int32
    /// What to add to the place of a byte for its stream offset. The header of a later part is not the stream's.
    let base: Int
    /// Bytes read so far; the header comes first.
    var position = 0
    /// The first piece stays: the server copies its header into the next part.
    var punched = StoredTimeline.pieceLength
  }

  package static let headerLength = 80
  private static let pieceLength = 1 << 20
  private let directory: String
  /// At which stream offset a later part begins; nil as long as that is not known.
  private let beginning: (_ recording: String) -> Int?
  private var recordings: [Recording] = []

  /// Stream offsets.
  private var silences: [Range<Int>] = []
  /// The microphone's frame that is due, and whether the last one seen was its.
  private var nextFrame: UInt64 = 0
  private var isSound = false
  private var hasLostHeader = false

  package init(_ directory: String, beginning: @escaping (_ recording: String) -> Int?) {
    self.directory = directory
    self.beginning = beginning
  }

  package var count: Int { recordings.count }

  /// Which bytes of the stream are in the recordings.
  package var stored: OffsetSet {
    OffsetSet(
      recordings.enumerated().map { index, recording in
        let start = index == 0 ? 0 : min(Self.headerLength, recording.position)
        return recording.base + start..<recording.base + recording.position
      })
  }

  /// Where there is silence that the microphone did not hear.
  package var silent: OffsetSet { OffsetSet(silences) }

  /// The newest recording, and how many bytes of it were compared.
  var newest: (path: String, compared: Int)? {
    recordings.last.map { ("\(directory)/\($0.name).part", $0.position) }
  }

  /// Takes in what is there by now.
  ///
  /// - Parameter isLast: nothing is written any more.
  /// - Throws: ``TestFailure`` where something else is stored than the microphone's frames in their order, and silence.
  package mutating func advance(isLast: Bool = false) throws {
    try findNew(isLast: isLast)
    for index in recordings.indices {
      // What comes later is in the newest.
      while try readPiece(index, isLast: isLast || index + 1 < recordings.count) {}
      punch(index)
    }
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
          // What the server says of it is still to be read.
          guard isLast else { return }
          throw TestFailure("no server has begun \(stem)")
        }
        base = start - Self.headerLength
      }
      var found = open("\(directory)/\(stem).part", O_RDWR | O_CLOEXEC)
      if found < 0 { found = open("\(directory)/\(stem).wav", O_RDWR | O_CLOEXEC) }
      // Renamed between the two looks: the next look finds it.
      guard found >= 0 else { return }
      recordings.append(Recording(name: stem, descriptor: found, base: base))
    }
  }

  /// A part begins where the client knew the end of the one before. The server may have stored more of that.
  private mutating func beginPart(_ index: Int) {
    let (last, start) = (recordings[index - 1], recordings[index].base + Self.headerLength)
    isSound = false
    nextFrame -= min(nextFrame, UInt64(max(0, last.base + last.position - start) + 1) / 2)
  }

  private static func number(_ stem: String) -> Int {
    stem.lastIndex(of: "~").flatMap { Int(stem[stem.index(after: $0)...]) } ?? 1
  }

  /// Whether there may be more.
  private mutating func readPiece(_ index: Int, isLast: Bool) throws -> Bool {
    let descriptor = recordings[index].descriptor
    var position = recordings[index].position
    if position == 0 {
      var header = [UInt8](repeating: 0, count: Self.headerLength)
      guard pread(descriptor, &header, header.count, 0) == header.count else { return false }
      if header.allSatisfy({ $0 == 0 }), index == 0 || hasLostHeader {
        // Lost with what followed it, before the first connection. Later parts have a copy of it.
        hasLostHeader = true
        if index == 0 { noteSilence(0, header.count) }
      } else if !header.starts(with: Array("RIFF".utf8)) {
        throw TestFailure("\(recordings[index].name) has no header")
      }
      position = header.count
      if index > 0 { beginPart(index) }
    }
    var samples = [Int16](repeating: 0, count: Self.pieceLength / 2)
    let count = samples.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress, $0.count, off_t(position)) }
    guard count >= 0 else { throw TestFailure("\(recordings[index].name): \(String(cString: strerror(errno)))") }
    let known = count / 2
    // The end of what is there does not yet show what it belongs to.
    let isEnd = isLast && count < Self.pieceLength
    let (name, base) = (recordings[index].name, recordings[index].base)
    let consumed = try samples.withUnsafeBufferPointer { all in
      try take(UnsafeBufferPointer(rebasing: all[..<known]), of: name, at: position, base, isEnd: isEnd)
    }
    recordings[index].position = position + 2 * consumed
    return consumed > 0 && count == Self.pieceLength
  }

  /// How many samples are done with.
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
      // A frame of the microphone may be silent, too.
      var (frame, found) = sound
      while !found.isHalf, found.index > at, frame > nextFrame, testmic_sample(1, frame - 1, 0) == 0 {
        (found.index, frame) = (found.index - 1, frame - 1)
      }
      noteSilence(place + 2 * at, place + 2 * found.index - (found.isHalf ? 1 : 0))
      (nextFrame, isSound, at) = (frame, true, found.index)
    }
    return at
  }

  /// Which frame the first sample after a silence is, and where it is; a loss may end within the frame before it. Nil
  /// where nothing tells yet.
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

  /// Returns to the file system what was seen, in whole megabytes. The file's length stays as it is.
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

  /// Closes the files.
  package func close() { for recording in recordings { Glibc.close(recording.descriptor) } }
}
