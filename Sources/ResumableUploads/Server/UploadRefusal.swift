// Why the server refuses a request of the protocol, as a value. Status, fields and body follow from it.

/// Why an upload resource rejects every further interaction.
package enum Deactivation: String, Equatable, Sendable, CaseIterable {
  /// DELETE (section "Upload Cancellation").
  case cancelled
  /// No request arrived during the resource's lifetime.
  case expired
  /// Nobody continued a live stream within the permitted silence. The received bytes are closed and kept.
  case interrupted
  /// More bytes arrived than the announced length (section "Upload Append").
  case lengthExceeded = "length-exceeded"
  /// The stream is already stored, and is longer than the upload, whose length was announced.
  case outgrown
  /// Acknowledged bytes are missing (section "Offset").
  case stateLost = "state-lost"
  /// The machine stopped while acknowledged bytes may not have been on the disk.
  case unsynced
  /// A newer request of the same stream has begun behind bytes that never arrived. They can no longer be added.
  case overtaken
  /// The stream has ended, or continues elsewhere, since the upload was created. The upload no longer fits anywhere.
  case misplaced
  /// The stream contains different bytes at the upload's offsets, or is complete and ends before them.
  case contradicted
  /// The bytes do not match the `Repr-Digest` that the creation announced.
  case refuted
  /// The resource behind the upload has released it without a response.
  case abandoned

  package var description: String {
    switch self {
    case .cancelled: "the upload was cancelled"
    case .expired: "the upload has expired"
    case .interrupted:
      "the stream sent nothing for too long, and its recording is closed. Create a new upload to continue"
    case .lengthExceeded: "the upload is longer than the length that was announced"
    case .outgrown: "the stream is already stored, and is longer than this upload"
    case .stateLost: "the server has lost bytes that it had acknowledged"
    case .unsynced: "the machine stopped before it had written all acknowledged bytes"
    case .overtaken: "a newer request has continued the stream after bytes that never arrived"
    case .misplaced: "the stream can no longer be continued with this upload. Create a new upload to continue"
    case .contradicted: "the stream does not contain the bytes of this upload"
    case .refuted: "the upload does not match the Repr-Digest of its creation. None of it was kept"
    case .abandoned: "the handler abandoned the upload"
    }
  }
}

/// A request that the server does not carry out. The upload stays as it is, unless a case states otherwise.
package enum UploadRefusal: Error, Equatable, Sendable {
  /// The version is not in the table, and the request cannot be served without it.
  case unsupportedVersion
  case missingOffset
  case missingCompleteness
  /// HEAD, GET or DELETE with `Upload-Offset` or `Upload-Complete`, in a version that forbids it.
  case appendFields
  /// PATCH without `application/partial-upload`.
  case mediaType
  /// PATCH begins at another offset than the resource's (section "Upload Append").
  case mismatchingOffset(expected: UInt64, provided: UInt64)
  /// `Upload-Length`, `Content-Length` and earlier values do not agree (section "Length").
  case inconsistentLength
  /// More than `max-size`.
  case representationTooLarge
  /// More than `max-append-size`.
  case contentTooLarge
  /// Less than `min-append-size`, in a request that does not complete the upload.
  case contentTooSmall
  /// These bytes arrived after all bytes were already there.
  case completed
  case deactivated(Deactivation)
  case unknownResource
  case methodNotAllowed
  /// No upload resource is available now, because too many are in use, in total or by this client.
  case tooManyUploads
  /// The quota for the bytes of unfinished uploads is exhausted, in total or for this client.
  case quotaExhausted
  /// Writing the bytes to the disk failed; the value is the errno's text.
  case notStored(String, isFull: Bool)
  /// The server temporarily lacks a resource, such as descriptors; the value is the errno's text.
  case outOfResources(String)
  /// The content does not match its `Content-Digest` (RFC 9530, section 2).
  case contentDigest
  /// The content has a `Content-Digest`, and more bytes than the server can hold back until it is verified.
  case unverifiable(limit: Int)
  /// The whole upload does not match the `Repr-Digest` of its creation.
  case representationDigest
  /// Fewer bytes arrived in a period than the minimum rate requires.
  case tooSlow
  case serverStops
  /// The credential that created the upload is no longer valid (section "Security Considerations").
  case notAuthorized
  /// The handler asks the client to try again later.
  case handlerNotReady(status: Int, reason: String)

  /// The status of the answer to a request of that version.
  package func status(_ version: InteropVersion) -> Int {
    switch self {
    case .unsupportedVersion, .missingOffset, .missingCompleteness, .appendFields, .inconsistentLength,
      .contentTooSmall, .contentDigest, .representationDigest:
      400
    case .notAuthorized: 401
    case .unknownResource: 404
    case .methodNotAllowed: 405
    case .tooSlow: 408
    case .mismatchingOffset: 409
    case .completed: version.statuses.completed
    case .deactivated: version.statuses.inactive
    case .representationTooLarge, .contentTooLarge, .unverifiable: 413
    case .mediaType: 415
    case .tooManyUploads, .serverStops, .outOfResources: 503
    case .quotaExhausted: 507
    case .notStored(_, let isFull): isFull ? 507 : 500
    case .handlerNotReady(let status, _): status
    }
  }

  /// The cause and the remedy, in words.
  package var reason: String {
    switch self {
    case .unsupportedVersion:
      "this server does not support that Upload-Draft-Interop-Version. The same field of this response has its newest version"
    case .missingOffset: "a PATCH to an upload resource requires Upload-Offset, the number of bytes before its content"
    case .missingCompleteness: "a PATCH to an upload resource requires Upload-Complete: ?0 or ?1"
    case .appendFields: "Upload-Offset and Upload-Complete are valid only in a PATCH to an upload resource"
    case .mediaType: "a PATCH to an upload resource requires the Content-Type application/partial-upload"
    case .mismatchingOffset(let expected, let provided):
      "the upload continues at offset \(expected), and the request begins at \(provided)"
    case .inconsistentLength: "the lengths of the upload contradict each other"
    case .representationTooLarge: "the upload is larger than this server accepts. Upload-Limit states the maximum size"
    case .contentTooLarge: "the request is larger than this server accepts. Upload-Limit states the maximum size"
    case .contentTooSmall: "the request is smaller than this server accepts. Upload-Limit states the minimum size"
    case .completed: "the upload is complete: nothing can be appended to it"
    case .deactivated(let cause): cause.description
    case .unknownResource: "the upload does not exist"
    case .methodNotAllowed: "an upload resource supports HEAD, GET, PATCH, DELETE and OPTIONS"
    case .tooManyUploads: "too many uploads are unfinished. Complete or cancel one, or try again later"
    case .quotaExhausted:
      "unfinished uploads use the whole quota. Complete or cancel one, or try again later"
    case .notStored(let reason, _), .outOfResources(let reason): reason
    case .contentDigest: "the content does not match its Content-Digest. Nothing was appended"
    case .unverifiable(let limit):
      "content with a Content-Digest may have at most \(limit) bytes. Send less per request, or omit the Content-Digest"
    case .representationDigest: Deactivation.refuted.description
    case .tooSlow: "the content arrives more slowly than this server accepts"
    case .serverStops: "the server is stopping"
    case .notAuthorized: "the credential is no longer valid"
    case .handlerNotReady(_, let reason): reason
    }
  }

  /// The problem type for it, if that version of the protocol has one.
  package func problem(_ version: InteropVersion) -> ProblemType? {
    switch self {
    case .mismatchingOffset(let expected, let provided): .mismatchingOffset(expected: expected, provided: provided)
    case .inconsistentLength: .inconsistentLength
    case .completed: version.namesCompletedUpload ? .completedUpload : nil
    default: nil
    }
  }

  /// Whether the same request may succeed later, so that the answer has `Retry-After`.
  package var allowsRetry: Bool {
    switch self {
    case .tooManyUploads, .quotaExhausted, .notStored, .outOfResources, .serverStops, .handlerNotReady: true
    default: false
    }
  }

  /// Whether the answer contains the limits (section "Limits": a 413 because of them SHOULD).
  package var tellsLimits: Bool {
    switch self {
    case .representationTooLarge, .contentTooLarge, .contentTooSmall, .quotaExhausted, .tooManyUploads: true
    default: false
    }
  }

  /// Whether the resource still has an offset, which the answer reports.
  package var tellsOffset: Bool {
    switch self {
    case .deactivated, .unknownResource, .methodNotAllowed, .unsupportedVersion, .appendFields, .tooManyUploads,
      .representationDigest:
      false
    default: true
    }
  }
}
