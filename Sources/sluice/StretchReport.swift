// The output of sluice spool for a stretch.

internal import EventLoops
internal import JSONLines
internal import Spool
internal import SpooledStreams

/// Prints stretches as text or as JSON.
struct StretchReport {
  let isJSON: Bool

  /// Lists one stretch: its start, its length, and the bytes that the server has not stored.
  func list(_ entry: SpoolEntry, _ file: SpoolFile) throws(SpoolError) {
    let user = try SpoolFolder.user(of: entry.folder)
    let disk = try file.diskByteCount
    // A process that uses the stream changes it.
    let remains = user == .nobody ? Self.remains(file) : nil
    let lost = file.lostByteCount + (remains?.lostByteCount ?? 0)
    if isJSON {
      var line = line("stretch", entry, file)
      line.add("disk_bytes", disk)
      if user == .nobody { line.add("memory_bytes", remains?.byteCount ?? 0) }
      line.add("lost_bytes", lost)
      if case .process(let process) = user {
        line.add("in_use", true)
        line.add("process", process)
      } else {
        line.add("in_use", false)
      }
      return Console.shared.put(line.line)
    }
    var facts = [
      "started \(time(file.created))", "\(Units.text(bytes: file.head)) long",
      "\(Units.text(bytes: file.keptByteCount)) not acknowledged", "\(Units.text(bytes: disk)) on disk",
    ]
    if file.checkpoint.isFinished { facts.append("finished") }
    if file.mayLackBytes { facts.append("bytes may be lost") }
    if let count = remains?.byteCount, count > 0 { facts.append("\(Units.text(bytes: count)) more in memory") }
    if lost > 0 { facts.append("\(Units.text(bytes: lost)) lost") }
    if case .process(let process) = user { facts.append("in use by process \(process.map(String.init) ?? "unknown")") }
    Console.shared.put("\(entry.path.escaped)\n    \(facts.joined(separator: ", "))")
  }

  /// Lists a stretch that has no file.
  ///
  /// - Parameter content: nil while a process uses the stream and changes it.
  func list(_ stretch: StretchInMemory, _ content: StretchInMemory.Content?) {
    var user: (isThere: Bool, process: Int32?) = (false, nil)
    if case .process(let process) = stretch.user { user = (true, process) }
    var remains: StretchRemains?
    if case .remains(let found)? = content { remains = found }
    if isJSON {
      var line = JSONLine(event: "stretch-in-memory")
      line.add("stream", stretch.entry.stream)
      line.add("path", stretch.entry.path)
      line.add("started", time(stretch.created))
      line.add("memory_bytes", remains?.byteCount)
      line.add("lost_bytes", remains?.lostByteCount)
      line.add("bytes_may_be_lost", content == .lost)
      line.add("in_use", user.isThere)
      line.add("process", user.process)
      return Console.shared.put(line.line)
    }
    var facts = ["started \(time(stretch.created))"]
    if let remains { facts.append("\(Units.text(bytes: remains.byteCount)) not acknowledged") }
    facts.append("only in memory, without a file")
    if let lost = remains?.lostByteCount, lost > 0 { facts.append("\(Units.text(bytes: lost)) lost") }
    if content == .lost { facts.append("bytes may be lost") }
    if user.isThere { facts.append("in use by process \(user.process.map(String.init) ?? "unknown")") }
    Console.shared.put("\(stretch.entry.path.escaped)\n    \(facts.joined(separator: ", "))")
  }

  /// Shows all fields of the file.
  func show(_ entry: SpoolEntry, _ file: SpoolFile) throws(SpoolError) {
    let checkpoint = file.checkpoint
    if isJSON {
      var line = line("checkpoint", entry, file)
      line.add("capacity", file.capacity)
      line.add("released", file.released)
      line.add("oldest", file.oldest)
      line.add("head", file.head)
      line.add("paused_bytes", checkpoint.pausedByteCount)
      line.add("pause_positions", checkpoint.pauses.map(\.position))
      line.add("pause_lengths", checkpoint.pauses.map(\.length))
      line.add("description", file.description)
      line.add("state", checkpoint.state)
      Console.shared.put(line.line)
      for damage in file.damage { put(damage, entry) }
      return
    }
    Console.shared.put(
      """
      \(entry.path.escaped)
          started:      \(time(file.created))
          capacity:     \(file.capacity) bytes
          acknowledged: up to \(file.released)
          oldest:       \(file.oldest)
          head:         \(file.head)\(checkpoint.isFinished ? ", finished" : "")
          paused:       \(checkpoint.pausedByteCount) bytes
      """)
    for pause in checkpoint.pauses {
      Console.shared.put("    pause:        \(pause.length) bytes at \(pause.position)")
    }
    Console.shared.put("    description:  \(file.description.escaped)\n    state:        \(checkpoint.state.escaped)")
    for damage in file.damage { put(damage, entry) }
  }

  /// - Returns: whether bytes are lost that the server has not stored.
  func verify(_ entry: SpoolEntry, _ file: SpoolFile) throws(SpoolError) -> Bool {
    var found = try file.verify()
    var remains: StretchRemains?
    if try SpoolFolder.user(of: entry.folder) == .nobody {
      remains = Self.remains(file)
      if let lost = remains?.lost, !lost.isEmpty { found.holes.append(lost) }
    } else {
      // A process that uses the file may have released or replaced blocks before they were read.
      found.forget(before: try SpoolFile.open(entry.path, access: .readOnly).oldest)
    }
    for damage in found.damage { put(damage, entry) }
    for hole in found.holes { put("hole", "lost before they were spooled", hole, entry) }
    if !found.evicted.isEmpty { put("evicted", "discarded to make room", found.evicted, entry) }
    if isJSON {
      var line = line("verified", entry, file)
      line.add("intact_bytes", found.intactByteCount)
      if let remains { line.add("memory_bytes", remains.byteCount) }
      line.add("lost_bytes", found.lostByteCount)
      line.add("lost", found.hasLoss)
      Console.shared.put(line.line)
    } else {
      var loss = "\(found.lostByteCount) bytes lost"
      if found.mayLackBytes { loss = found.lostByteCount == 0 ? "bytes may be lost" : "\(loss), and more may be" }
      var intact = "\(found.intactByteCount) bytes intact"
      if let count = remains?.byteCount, count > 0 { intact += ", \(count) more in memory" }
      Console.shared.say("\(entry.path.escaped): \(intact), \(loss)")
    }
    return found.hasLoss
  }

  /// Prints the lost bytes of a stretch that has no file.
  ///
  /// - Returns: whether bytes are lost that the server has not stored.
  func verify(_ stretch: StretchInMemory, _ content: StretchInMemory.Content?) -> Bool {
    guard case .remains(let remains)? = content, !remains.lost.isEmpty else { return content == .lost }
    put("hole", "lost before they were spooled", remains.lost, stretch.entry)
    return true
  }

  /// What memory shows about the stretch of a process that has ended. If another program has changed that memory, the
  /// report of the damage covers it.
  private static func remains(_ file: SpoolFile) -> StretchRemains? {
    file.hasLostMemory ? nil : file.remainsInMemory
  }

  /// - Parameter wasOnlyInMemory: whether it had no file.
  func removed(_ entry: SpoolEntry, wasOnlyInMemory: Bool) {
    if isJSON {
      var line = JSONLine(event: "removed")
      line.add("stream", entry.stream)
      line.add("path", entry.path)
      line.add("only_in_memory", wasOnlyInMemory)
      Console.shared.put(line.line)
    } else {
      Console.shared.put("removed \(entry.path.escaped)\(wasOnlyInMemory ? ", which was only in memory" : "")")
    }
  }

  /// - Parameter shown: the same error for people.
  func failed(_ entry: SpoolEntry, _ error: SpoolError, _ shown: CommandError) {
    if isJSON {
      var line = JSONLine(event: "error")
      line.add("stream", entry.stream)
      line.add("path", entry.path)
      line.add("reason", SpoolCommand.reason(error))
      Console.shared.put(line.line)
    }
    Console.shared.say("sluice: \(shown.message)")
  }

  // MARK: Lines

  private func line(_ event: String, _ entry: SpoolEntry, _ file: SpoolFile) -> JSONLine {
    var line = JSONLine(event: event)
    line.add("stream", entry.stream)
    line.add("path", entry.path)
    line.add("started", time(file.created))
    line.add("bytes", file.head)
    line.add("unacknowledged_bytes", file.keptByteCount)
    line.add("finished", file.checkpoint.isFinished)
    line.add("bytes_may_be_lost", file.mayLackBytes)
    return line
  }

  private func put(_ damage: SpoolDamage, _ entry: SpoolEntry) {
    if isJSON {
      var line = JSONLine(event: "damage")
      line.add("path", entry.path)
      line.add("kind", damage.kind.rawValue)
      line.add("file_offset", damage.fileOffset)
      let hasPosition = !damage.lostPositions.isEmpty || damage.kind == .lostMemory
      line.add("lost_from", hasPosition ? damage.lostPositions.lowerBound : nil)
      line.add("lost_bytes", damage.lostByteCount)
      return Console.shared.put(line.line)
    }
    let lost = damage.lostPositions
    if damage.kind == .lostMemory {
      return Console.shared.put(
        "\(entry.path.escaped): bytes from offset \(lost.lowerBound) on may be missing: \(words(damage.kind))")
    }
    let loss = lost.isEmpty ? "" : ": bytes \(lost.lowerBound) to \(lost.upperBound - 1) are lost"
    Console.shared.put("\(entry.path.escaped): \(words(damage.kind)) at \(damage.fileOffset) in the file\(loss)")
  }

  private func put(_ kind: String, _ words: String, _ range: Range<UInt64>, _ entry: SpoolEntry) {
    if isJSON {
      var line = JSONLine(event: kind)
      line.add("path", entry.path)
      line.add("lost_from", range.lowerBound)
      line.add("lost_bytes", range.count)
      return Console.shared.put(line.line)
    }
    Console.shared.put("\(entry.path.escaped): bytes \(range.lowerBound) to \(range.upperBound - 1) were \(words)")
  }

  private func words(_ kind: SpoolDamage.Kind) -> String {
    switch kind {
    case .header: "damaged header (its copy is intact)"
    case .checkpoint: "damaged checkpoint (nothing is lost)"
    case .newestCheckpoint: "damaged checkpoint (the last bytes may be lost)"
    case .allCheckpoints: "no checkpoint was intact (bytes may be lost)"
    case .lostMemory: "their process was killed, and its data in /dev/shm was removed or changed"
    case .truncated: "end of the truncated file"
    case .torn: "torn block"
    case .flippedBit: "flipped bit in a block"
    case .unwritten: "block that was never written"
    case .overwritten: "block that a newer one replaced"
    case .unreadable: "unreadable block"
    }
  }

  private func time(_ milliseconds: Int64) -> String {
    // A header may contain any number. No stretch began after the year 9999 or before 1970.
    guard (0..<253_402_300_800_000).contains(milliseconds) else { return "at an unknown time" }
    return WallClock(seconds: milliseconds / 1000, milliseconds: Int(milliseconds % 1000)).iso8601
  }
}
