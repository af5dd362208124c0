// The running transfers: how they begin, their events, and their remains.

internal import DiskFiles
internal import Downloads
internal import EventLoops
internal import LiveStreaming
internal import ResumableUploads
internal import TransferClient

extension TransferAgent {
  // MARK: The beginning

  func start(_ transfer: Transfer) {
    running[transfer.id] = .opening
    files.execute { [self] in
      switch transfer.request.kind {
      case .upload:
        let file = RunningUpload.file(transfer)
        loop.execute { [self] in begin(transfer, file) { begin(transfer, uploading: $0) } }
      case .download:
        let beginning = RunningDownload.beginning(transfer)
        loop.execute { [self] in begin(transfer, beginning) { begin(transfer, downloading: $0) } }
      }
    }
    watchProgress()
  }

  /// The files of a transfer have been examined.
  private func begin<Found>(
    _ transfer: Transfer, _ found: Result<Found, TransferFailure>, _ run: (Found) -> Void
  ) {
    let id = transfer.id
    guard queue.running[id] == .running else { return finish(id, .stopped(resumeData: transfer.knownPart)) }
    switch found {
    case .failure(let failure) where failure.isTemporary: finish(id, .postponed(failure.message))
    case .failure(let failure):
      finish(id, .failed(TransferResult(.failed, cause: failure.cause, message: failure.message)))
    case .success(let found): run(found)
    }
  }

  private func begin(_ transfer: Transfer, uploading file: UploadFile) {
    let streamer = RunningUpload.streamer(transfer, file, session)
    running[transfer.id] = .upload(streamer)
    streamer.start { [self] event in
      guard let news = RunningUpload.news(event, of: transfer) else { return }
      loop.execute { [self] in hear(news, of: transfer.id) }
    }
  }

  private func begin(_ transfer: Transfer, downloading beginning: RunningDownload.Beginning) {
    let id = transfer.id
    switch beginning {
    case .complete(let count):
      var result = TransferResult(.completed)
      result.byteCount = count
      finish(id, .completed(result))
    case .download(let data):
      let download = FileDownload(
        RunningDownload.configuration(transfer, data) { [self] checkpoint in record(checkpoint, of: id) })
      running[id] = .download(download)
      download.start(on: session) { [self] event in
        let news = RunningDownload.news(event, of: transfer)
        if !news.isEmpty { loop.execute { [self] in for one in news { hear(one, of: id) } } }
      }
    }
  }

  /// Stores the path and the source of a download's part. Runs on a thread of the download, which writes nothing into
  /// the part before the database has this.
  ///
  /// - Returns: whether the database has it. A download that requires it waits for its next attempt, and occupies no
  ///   place meanwhile.
  private func record(_ checkpoint: DownloadCheckpoint, of id: Int64) -> Bool {
    let stored = StoredSignal()
    loop.execute { [self] in stored.signal(tryEvent(.created(id, resumeData: checkpoint.text), nil) == nil) }
    return stored.wait()
  }

  // MARK: Events

  private func hear(_ news: TransferNews, of id: Int64) {
    switch news {
    case .created(let data): if let text = data.text { happen(.created(id, resumeData: text)) }
    case .acknowledged(let count): queue.note(id, acknowledged: count)
    case .receiving(let offset, let size):
      queue.note(id, contentStart: offset, size: size)
      tell(id)
    case .trouble(let words):
      guard queue.transfers[id]?.trouble != words else { break }
      queue.note(id, trouble: .some(words))
      tell(id)
      // Others may use its place while it waits.
      if words != nil { happen(.timeCame) }
    case .ended(let ending): finish(id, ending)
    }
  }

  private func finish(_ id: Int64, _ ending: TransferQueue.Ending) {
    running[id] = nil
    happen(.finished(id, ending))
  }

  // MARK: Remains

  /// Asks the server to remove an upload, or removes the part of a download.
  func abandon(_ transfer: Transfer) {
    abandons += 1
    files.execute { [self] in
      if transfer.request.kind == .download {
        RunningDownload.remove(transfer)
        return loop.execute { [self] in endAbandon(transfer.id, isDone: true) }
      }
      // The file of an abandoned upload is not read, so any file can replace a missing one.
      guard
        let file = (try? UploadFile(path: transfer.request.path)) ?? (try? UploadFile(path: "/proc/self/exe"))
      else { return loop.execute { [self] in endAbandon(transfer.id, isDone: false) } }
      let streamer = RunningUpload.streamer(transfer, file, session)
      streamer.abandon()
      streamer.start { [self] event in
        guard case .ended(let summary) = event else { return }
        // The server has removed it when there is nothing left to resume. A refusal is also an answer.
        let isDone =
          summary.resumeData == nil || ![.cancelled, .unreachable, .unfinished].contains(summary.error?.kind)
        loop.execute { [self] in endAbandon(transfer.id, isDone: isDone) }
      }
      loop.execute { [self] in loop.schedule(after: Self.abandonLimit) { streamer.cancel() } }
    }
  }

  private func endAbandon(_ id: Int64, isDone: Bool) {
    abandons -= 1
    happen(.abandoned(id, isDone: isDone))
  }

  // MARK: Progress

  /// Updates the progress of running transfers, while a program watches.
  func watchProgress() {
    guard progressTimer == nil, !running.isEmpty, !watchers.isEmpty else { return }
    progressTimer = loop.schedule(after: Self.progressInterval) { [self] in
      progressTimer = nil
      updateProgress { [self] in watchProgress() }
    }
  }

  /// Asks the running transfers for their progress, reports it to the watching programs, and then calls `done`.
  func updateProgress(_ done: @escaping @Sendable () -> Void) {
    guard !running.isEmpty else { return done() }
    for (id, transfer) in running {
      transfer.withProgress { [self] count in
        loop.execute { [self] in
          guard let transfer = queue.transfers[id], transfer.acknowledged != count, !transfer.hasEnded else { return }
          queue.note(id, acknowledged: count)
          tell(id)
        }
      }
    }
    // The network thread answers the questions in order, as far as the transfers still run.
    session.loop.execute { [self] in loop.execute(done) }
  }
}
