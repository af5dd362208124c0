// What a server stores of the test microphone for a week, compared with the microphone while it comes.

internal import Glibc
internal import NetworkTesting
internal import TestDeviceControl

/// Reads a stream's recordings as they grow, and takes the disk space back of what it has seen.
struct StoredTimeline {
  private struct Recording {
    let descriptor: Int32
    /// Bytes read so far; the header comes first.
    var position = 0
    var punched = 0
  }

  private static let headerLength = 44
  private static let pieceLength = 1 << 20
  private let directory: String
  private var recordings: [(name: String, recording: Recording)] = []

  private(set) var silentBytes = 0
  /// Which recording, and bytes of it.
  private(set) var silences: [(recording: String, bytes: Range<Int>)] = []
  /// The microphone's frame that is due, and whether the last one seen was its.
  private var nextFrame: UInt64 = 0
  private var isSound = false

  init(_ directory: String) { self.directory = directory }

  var count: Int { recordings.count }
  /// Bytes of the recordings, their headers included.
  var length: Int { recordings.reduce(0) { $0 + $1.recording.position } }

  /// Takes in what is there by now.
  ///
  /// - Parameter isLast: nothing is written any more.
  /// - Throws: ``TestFailure`` where something else is stored than the microphone's frames in their order, and silence.
  mutating func advance(isLast: Bool = false) throws {
    try findNew()
    for index in recordings.indices {
      // What comes later is in the newest.
      while try readPiece(index, isLast: isLast || index + 1 < recordings.count) {}
      punch(index)
    }
  }

  /// A recording `kitchen-ID.part` becomes `kitchen-ID.wav`; the next part is `kitchen-ID~2`.
  private mutating func findNew() throws {
    let names = try fileNames(in: directory).filter { $0.hasSuffix(".part") || $0.hasSuffix(".wav") }
    let stems = Set(names.map { String($0[..<($0.lastIndex(of: ".") ?? $0.endIndex)]) })
    for stem in stems.sorted(by: { Self.number($0) < Self.number($1) })
    where !recordings.contains(where: { $0.name == stem }) {
      var found = open("\(directory)/\(stem).part", O_RDWR | O_CLOEXEC)
      if found < 0 { found = open("\(directory)/\(stem).wav", O_RDWR | O_CLOEXEC) }
      // Renamed between the two looks: the next look finds it.
      if found >= 0 { recordings.append((stem, Recording(descriptor: found))) }
    }
  }

  private static func number(_ stem: String) -> Int {
    stem.lastIndex(of: "~").flatMap { Int(stem[stem.index(after: $0)...]) } ?? 1
  }

  /// Whether there may be more.
  private mutating func readPiece(_ index: Int, isLast: Bool) throws -> Bool {
    let descriptor = recordings[index].recording.descriptor
    var position = recordings[index].recording.position
    if position == 0 {
      var header = [UInt8](repeating: 0, count: Self.headerLength)
      guard pread(descriptor, &header, header.count, 0) == header.count else { return false }
      guard header.starts(with: Array("RIFF".utf8)) else {
        throw TestFailure("\(recordings[index].name) has no header")
      }
      position = header.count
    }
    var samples = [Int16](repeating: 0, count: Self.pieceLength / 2)
    let count = samples.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress, $0.count, off_t(position)) }
    guard count >= 0 else { throw TestFailure("\(recordings[index].name): \(String(cString: strerror(errno)))") }
    let known = count / 2
    // The end of what is there does not yet show what it belongs to.
    let isEnd = isLast && count < Self.pieceLength
    let name = recordings[index].name
    let consumed = try samples.withUnsafeBufferPointer { all in
      try take(UnsafeBufferPointer(rebasing: all[..<known]), of: name, at: position, isEnd: isEnd)
    }
    recordings[index].recording.position = position + 2 * consumed
    return consumed > 0 && count == Self.pieceLength
  }

  /// How many samples are done with.
  private mutating func take(
    _ samples: UnsafeBufferPointer<Int16>, of name: String, at position: Int, isEnd: Bool
  ) throws -> Int {
    guard let base = samples.baseAddress else { return 0 }
    var at = 0
    while at < samples.count {
      var start = at
      if isSound {
        let count = testmic_matching(base + at, samples.count - at, 1, nextFrame)
        at += count
        nextFrame += UInt64(count)
        guard at < samples.count else { break }
        isSound = false
        start = at
        // A loss may begin within a frame.
        let isHalf = samples[at] != 0 && samples[at] == testmic_sample(1, nextFrame, 0) & 0xff
        if isHalf { at += 1 }
        noteSilence(name, position + 2 * start + (isHalf ? 1 : 0), position + 2 * at)
      }
      let silent = testmic_silent(base + at, samples.count - at)
      guard let sound = try locate(samples, at + silent, isEnd: isEnd, "\(name), byte \(position + 2 * (at + silent))")
      else {
        noteSilence(name, position + 2 * at, position + 2 * (at + silent))
        return at + silent
      }
      // A frame of the microphone may be silent, too.
      var (frame, found) = sound
      while !found.isHalf, found.index > at, frame > nextFrame, testmic_sample(1, frame - 1, 0) == 0 {
        (found.index, frame) = (found.index - 1, frame - 1)
      }
      noteSilence(name, position + 2 * at, position + 2 * found.index - (found.isHalf ? 1 : 0))
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

  private mutating func noteSilence(_ name: String, _ start: Int, _ end: Int) {
    guard start < end else { return }
    silentBytes += end - start
    if let last = silences.last, last.recording == name, last.bytes.upperBound == start {
      silences[silences.count - 1].bytes = last.bytes.lowerBound..<end
    } else {
      silences.append((name, start..<end))
    }
  }

  /// Returns to the file system what was seen, in whole megabytes. The file's length stays as it is.
  private mutating func punch(_ index: Int) {
    let recording = recordings[index].recording
    let end = recording.position & ~(Self.pieceLength - 1)
    guard end > recording.punched else { return }
    let length = end - recording.punched
    let map = mmap(nil, length, PROT_READ | PROT_WRITE, MAP_SHARED, recording.descriptor, off_t(recording.punched))
    guard let map, map != MAP_FAILED else { return }
    defer { munmap(map, length) }
    if madvise(map, length, MADV_REMOVE) == 0 { recordings[index].recording.punched = end }
  }

  /// Closes the files.
  func close() { for (_, recording) in recordings { Glibc.close(recording.descriptor) } }
}
