// Offers the server to resume a request whose body can be sent again.

internal import Foundation
internal import FoundationNetworking
internal import HTTPMessages
internal import ResumableUploads
internal import UploadClient

extension Transfer {
  /// Whether the request's body can be sent again from any offset.
  var offersResumption: Bool {
    guard task is URLSessionUploadTask, ["POST", "PUT", "PATCH"].contains(request.httpMethod ?? "") else {
      return false
    }
    switch content {
    case .bytes, .file: return true
    default: return false
    }
  }

  /// A 104 with a `Location` names the upload resource for resumption.
  func noteAnnouncement(_ response: HTTPResponse) {
    guard offersResumption, response.status == 104, announced == nil, let sent, let offered,
      versionNamed(by: response) == .known(offered),
      let url = response["Location"].flatMap({ sent.resolving(location: $0) }),
      !sent.isSecure || UploadRequest(url: url).isSecure
    else { return }
    announced = url
  }

  /// Whether a final response refuses the offer because of its version, so that an older one may be accepted.
  ///
  /// Only if the response itself blames the version, because a body must not be sent again on a guess.
  func refusesVersion(_ response: HTTPResponse) -> Bool {
    guard offersResumption, offered != nil, announced == nil, [400, 412, 501].contains(response.status) else {
      return false
    }
    if versionNamed(by: response) != .absent { return true }
    if ["Tus-Version", "Tus-Resumable"].contains(where: { response[$0] != nil }) { return true }
    // A server of tus 1.0 may add no field, but a condition of the program has the same status.
    return response.status == 412 && sent?.hasCondition == false
  }

  /// Changes to the version that the server has named, or to the next older one. Below the oldest there is no offer.
  func stepDown(_ response: HTTPResponse) {
    guard let current = offered else { return }
    var next = current.older
    // Only to an older version, so that this ends.
    if case .known(let named) = versionNamed(by: response), let number = named.number,
      number < current.number ?? .max
    {
      next = named
    }
    offered = next
  }

  private func versionNamed(by response: HTTPResponse) -> InteropVersion.Named {
    InteropVersion.Named(response.fields)
  }
}

extension InteropVersion {
  /// The request contains the whole body, and the server may make it resumable (draft-ietf-httpbis-resumable-upload,
  /// section "Upgrading To Resumable Uploads").
  func offer(resumptionOf length: Int64, _ upload: inout UploadRequest) {
    setVersion(&upload.fields)
    setCompleteness(true, &upload.fields)
    if hasLimits { upload.fields.append(UploadFields.length, "\(max(0, length))") }
  }
}

extension UploadRequest {
  /// Whether it states if it completes an upload, as only a creation or an append does.
  var tellsCompleteness: Bool {
    fields.contains("Upload-Complete") || fields.contains("Upload-Incomplete")
  }
}
