// Tests the names, types and numbers that the draft registers.

import ResumableUploads
import Testing

@Suite("Names of the protocol") struct ProtocolNameTests {
  @Test("each problem type has the URI and the title of its registration (section IANA Considerations)")
  func problemTypes() {
    let mismatch = ProblemType.mismatchingOffset(expected: 12_500_000, provided: 25_000_000)
    #expect(mismatch.uri == "https://iana.org/assignments/http-problem-types#mismatching-upload-offset")
    #expect(mismatch.title == "Mismatching Upload Offset")
    let inconsistent = ProblemType.inconsistentLength
    #expect(inconsistent.uri == "https://iana.org/assignments/http-problem-types#inconsistent-upload-length")
    #expect(inconsistent.title == "Inconsistent Upload Length Values")
    let completed = ProblemType.completedUpload
    #expect(completed.uri == "https://iana.org/assignments/http-problem-types#completed-upload")
    #expect(completed.title == "Upload Is Completed")
    #expect(ProblemType.mediaType == "application/problem+json")
  }

  @Test("names, media type and status are those of the draft, and all of its fields are recognized")
  func names() {
    #expect(UploadFields.partialUpload == "application/partial-upload" && UploadFields.resumptionSupported == 104)
    #expect(
      Set(UploadFields.all) == [
        "Upload-Offset", "Upload-Length", "Upload-Limit", "Upload-Complete", "Upload-Incomplete",
        "Upload-Draft-Interop-Version",
      ])
  }
}
