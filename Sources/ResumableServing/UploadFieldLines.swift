// Converts between HTTP messages and the protocol's values.

internal import HTTPMessages
internal import ResumableUploads

extension Response {
  init(_ recorded: UploadRecord.Response) {
    self.init(recorded.status, recorded.fields)
    body = recorded.body
  }
}
