// The active request of an upload resource: its beginning, its content, and its end.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  /// The maximum number of interim responses that the request may receive; nil for any number.
  func interimLimit(_ transfer: UploadTransfer) -> Int? {
    transfer.head.wasForwarded ? resources.options.maximumForwardedInterimCount : nil
  }

  func adopt(_ new: UploadTransfer) {
    transfer = new
    new.resource = self
    new.number = ledger.state.transfer?.number ?? 0
    // The creation's announcement is one of them.
    progress.begin(
      limit: interimLimit(new).map { new.isCreation ? max(0, $0 - 1) : $0 },
      interval: UploadFields.progressInterval(new.head.fields))
    stopParking()
  }

  /// Reads the bytes that have arrived for the active transfer.
  func takeArrived() { transfer?.exchange?.takeArrived() }

  /// Ends the active transfer without a response, because a newer request has arrived. The state is already updated.
  func cutOff() {
    guard let transfer else { return }
    self.transfer = nil
    transfer.cutOff()
    // These bytes count, unless they are sent again.
    if content.keptCount == ledger.state.keptCount { keepContent() }
    leftBehind(transfer, "a newer request continues the upload")
  }

  /// Sends the client its interim responses, and requests its content.
  func start(_ new: UploadTransfer) {
    // An empty part does not need a handler that accepts it.
    guard new.request.content.mayHaveBytes || new.request.completes else {
      new.exchange?.acceptBody()
      return
    }
    openBody()
  }

  /// The handler accepts the body, and its bytes can be kept. The content of the active transfer may now arrive.
  func proceed() {
    guard let transfer, ledger.state.transfer != nil, ledger.state.phase == .incomplete else { return }
    if wasInterrupted {
      wasInterrupted = false
      emit(.continued, transfer)
    }
    if !transfer.isCreation { tellProgress(progress.schedule.accepted(now: progress.now), evenIfKnown: true) }
    watchRate(of: transfer)
    if transfer.digest != nil { content.hold() }
    transfer.exchange?.acceptBody()
  }

  func watchRate(of transfer: UploadTransfer) {
    guard let rate = resources.options.minimumRate, transfer.request.content.mayHaveBytes else { return }
    progress.watchRate(
      minimum: rate, window: resources.options.rateWindow,
      received: { [self] in ledger.state.transfer?.received ?? 0 }, tooSlow: { [self] in reject(transfer, .tooSlow) })
  }

  /// `transfer` has ended without complete content.
  func interrupted(_ transfer: UploadTransfer, _ reason: String) {
    guard ledger.state.interrupted(transfer.number) else { return }
    if self.transfer === transfer { self.transfer = nil }
    keepContent()
    leftBehind(transfer, reason)
  }

  private func leftBehind(_ transfer: UploadTransfer, _ reason: String, status: Int? = nil) {
    progress.end()
    touch()
    // The request only asked for the response once more.
    guard ledger.state.phase != .complete else { return }
    wasInterrupted = true
    emit(.interrupted, transfer, reason: reason, status: status)
    rest()
  }

  /// Ends the active transfer with an answer of the protocol.
  func reject(_ transfer: UploadTransfer, _ refusal: UploadRefusal) {
    guard self.transfer === transfer else { return }
    ledger.state.ended(transfer.number)
    self.transfer = nil
    transfer.resource = nil
    keepContent()
    let version = transfer.request.version
    leftBehind(transfer, refusal.reason, status: refusal.status(version))
    settle { [self] failure in
      transfer.respond(self.refusal(failure ?? refusal, version, isSettled: failure == nil))
    }
  }

  func serverStops(_ transfer: UploadTransfer) {
    // TCP has acknowledged these bytes to the client.
    takeArrived()
    // Wait for a representation that is being processed.
    guard self.transfer === transfer, ledger.state.phase != .processing else { return }
    reject(transfer, .serverStops)
  }
}
