// The connected programs: their orders, and the events they receive.

internal import DiskFiles
internal import Downloads
internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import TransferClient
internal import UploadClient

extension TransferAgent {
  func listen() throws(SystemError) {
    try loop.register(listener, .readable) { [unowned self] _ in acceptPeers() }
    isAccepting = true
  }

  /// Programs wait in the listener's queue for a while. Otherwise the loop would report them again at once, repeatedly.
  func pauseListening() {
    loop.deregister(listener)
    isAccepting = false
    loop.schedule(after: Self.acceptPause) { [self] in
      do throws(SystemError) { try listen() } catch { pauseListening() }
    }
  }

  func nextPeer() -> Int32? {
    guard isAccepting else { return nil }
    do throws(SystemError) {
      return try AgentSocket.accept(listener)
    } catch {
      pauseListening()
      return nil
    }
  }

  func acceptPeers() {
    while let descriptor = nextPeer() {
      guard AgentSocket.peerUser(of: descriptor) == geteuid(), let peer = try? AgentPeer(descriptor, loop: loop) else {
        close(descriptor)
        continue
      }
      peers[ObjectIdentifier(peer)] = peer
      peer.onOrder = { [unowned self, unowned peer] order in obey(order, of: peer) }
      peer.onEnd = { [unowned self, unowned peer] in
        watchers = watchers.mapValues { $0.filter { $0 !== peer } }.filter { !$0.value.isEmpty }
        peers[ObjectIdentifier(peer)] = nil
        watchIdleness()
      }
    }
    watchIdleness()
  }

  func obey(_ order: AgentOrder, of peer: AgentPeer) {
    let answer = (peer: peer, number: order.number)
    switch order.kind {
    case .submit(let request):
      // A program that did not receive the answer asks again, possibly after the file is gone.
      if let id = queue.id(ofKey: request.key) { return peer.say(.accepted(number: order.number, id: id)) }
      examine(request, answer)
    case .list(let session):
      updateProgress { [self] in
        for transfer in sorted(session) { peer.say(.transfer(number: order.number, status(transfer))) }
        peer.say(.done(number: order.number))
      }
    case .pause(let id): happen(.pause(id), answering: answer)
    case .resume(let id): happen(.resume(id), answering: answer)
    case .cancel(let id, let keeps): happen(.cancel(id, keeps: keeps), answering: answer)
    case .acknowledge(let id): happen(.acknowledge(id), answering: answer)
    case .watch(let session):
      var others = watchers[session, default: []].filter { $0 !== peer }
      if !session.isEmpty {
        for other in others { other.say(.replaced(session: session)) }
        others = []
      }
      watchers[session] = others + [peer]
      for transfer in sorted(session) { peer.say(.transfer(number: order.number, status(transfer))) }
      peer.say(.done(number: order.number))
      watchProgress()
    }
  }

  /// Examines the file of a transfer, and accepts the transfer.
  func examine(_ request: TransferRequest, _ order: (peer: AgentPeer, number: Int64)) {
    if request.kind == .download { return examineDownload(request, order) }
    examinations.execute { [self] in
      let result: Result<FileVersion, TransferFailure>
      do throws(UploadFileError) {
        let version = try UploadFile(path: request.path).version
        let found = FileStamp.of(request.path)
        if let named = request.file, let found, named != found {
          let message =
            "cannot upload \(request.path): it is not the file that the program named. It is now \(found)"
            + " and was \(named). Leave it unchanged, and submit it again."
          result = .failure(TransferFailure(cause: "fileChanged", message: message))
        } else {
          result = .success(version)
        }
      } catch {
        result = .failure(TransferFailure(error, path: request.path))
      }
      loop.execute { [self] in
        switch result {
        case .success(let version):
          // An upload that starts over is the same stream for a server that keeps stream names.
          var request = request
          request.streamID = request.streamID ?? LiveStreamConfiguration.randomStreamID()
          happen(.submitted(request, version: "\(version)", size: version.size), answering: order)
        case .failure(let failure): order.peer.say(.refused(number: order.number, .file, failure.message))
        }
      }
    }
  }

  /// Chooses the path for the part of a download, and accepts the download.
  private func examineDownload(_ request: TransferRequest, _ order: (peer: AgentPeer, number: Int64)) {
    examinations.execute { [self] in
      let part = RunningDownload.part(request, directory: downloads)
      loop.execute { [self] in
        switch part {
        case .success(let part):
          var request = request
          request.part = part
          happen(.submitted(request, version: "", size: nil), answering: order)
        case .failure(let failure): order.peer.say(.refused(number: order.number, .file, failure.message))
        }
      }
    }
  }

  func sorted(_ session: String?) -> [Transfer] {
    queue.transfers.values.filter { session == nil || $0.request.session == session }.sorted { $0.id < $1.id }
  }

  func status(_ transfer: Transfer) -> TransferStatus {
    let state: TransferStatus.State =
      switch transfer.state {
      case .active: queue.running[transfer.id] == nil || queue.unstored.contains(transfer.id) ? .waiting : .running
      case .paused: .paused
      case .ended: .ended
      }
    let (request, part) = (transfer.request, transfer.resumeData.flatMap { DownloadCheckpoint($0)?.data })
    var status = TransferStatus(
      id: transfer.id, key: request.key, session: request.session, task: request.task, kind: request.kind, state: state,
      url: UploadRequest.withoutCredentials(request.url), path: request.isKept ? request.part ?? "" : request.path,
      note: request.note,
      size: transfer.result?.outcome == .completed ? transfer.result?.byteCount : transfer.size ?? part?.length,
      acknowledged: transfer.result?.byteCount ?? max(transfer.acknowledged, part?.byteCount ?? 0),
      created: transfer.created, trouble: (state == .waiting ? queue.awaited(transfer) : nil) ?? transfer.trouble,
      result: transfer.result)
    (status.isAtOtherOrigin, status.contentStart) = (request.isAtOtherOrigin, transfer.contentStart)
    return status
  }
}
