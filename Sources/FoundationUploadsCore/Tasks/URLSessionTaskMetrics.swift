// What a task has done, request by request, for those who measure.

public import Foundation
public import FoundationNetworking
internal import UploadClient

/// The measurements of a task that is over.
open class URLSessionTaskMetrics: NSObject, @unchecked Sendable {
  /// One for each request, in the order of their ends: redirects, challenges, the questions and appends of a resumable
  /// upload.
  public let transactionMetrics: [URLSessionTaskTransactionMetrics]
  /// From the task's first ``URLSessionTask/resume()`` to its end.
  public let taskInterval: DateInterval
  /// How many redirects were followed.
  public let redirectCount: Int

  init(_ transactions: [URLSessionTaskTransactionMetrics], _ interval: DateInterval, redirects: Int) {
    (transactionMetrics, taskInterval, redirectCount) = (transactions, interval, redirects)
  }
}

/// The measurements of one request and its response. Dates are nil for what has not happened, and those of a connection
/// for a request that has used one again.
open class URLSessionTaskTransactionMetrics: NSObject, @unchecked Sendable {
  /// As it was sent, without fields of the connection.
  public let request: URLRequest
  /// nil where there was none.
  public let response: URLResponse?

  /// The request was begun.
  public let fetchStartDate: Date?
  public let domainLookupStartDate: Date?
  public let domainLookupEndDate: Date?
  public let connectStartDate: Date?
  /// The TLS handshake began.
  public let secureConnectionStartDate: Date?
  public let secureConnectionEndDate: Date?
  public let connectEndDate: Date?
  public let requestStartDate: Date?
  /// The last byte of the body was handed to the connection.
  public let requestEndDate: Date?
  /// The head of the final response was there.
  public let responseStartDate: Date?
  public let responseEndDate: Date?

  /// By its name in ALPN: `http/1.1`, `h2`.
  public let networkProtocolName: String?
  public let isReusedConnection: Bool
  public let localAddress: String?
  public let localPort: Int?
  public let remoteAddress: String?
  public let remotePort: Int?
  public let countOfRequestHeaderBytesSent: Int64
  public let countOfRequestBodyBytesSent: Int64
  /// Interim responses included.
  public let countOfResponseHeaderBytesReceived: Int64
  public let countOfResponseBodyBytesReceived: Int64

  init(_ request: URLRequest, _ response: URLResponse?, _ measured: RequestMeasurements) {
    (self.request, self.response) = (request, response)
    func date(_ time: Double?) -> Date? { time.map { Date(timeIntervalSince1970: measured.start + $0) } }
    let isNew = !measured.isConnectionReused
    fetchStartDate = date(0)
    domainLookupStartDate = isNew ? date(0) : nil
    domainLookupEndDate = date(measured.nameLookupEnd)
    connectStartDate = date(measured.nameLookupEnd)
    secureConnectionStartDate = measured.secureConnectionEnd == nil ? nil : date(measured.connectEnd)
    secureConnectionEndDate = date(measured.secureConnectionEnd)
    connectEndDate = date(measured.secureConnectionEnd ?? measured.connectEnd)
    requestStartDate = date(measured.requestStart)
    requestEndDate = date(measured.requestEnd)
    responseStartDate = date(measured.responseStart)
    responseEndDate = measured.responseStart == nil ? nil : date(measured.end)
    networkProtocolName = measured.protocolName
    isReusedConnection = measured.isConnectionReused
    (localAddress, localPort) = (measured.localAddress, measured.localPort)
    (remoteAddress, remotePort) = (measured.remoteAddress, measured.remotePort)
    countOfRequestHeaderBytesSent = measured.requestHeadSize
    countOfRequestBodyBytesSent = measured.requestBodySize
    countOfResponseHeaderBytesReceived = measured.responseHeadSize
    countOfResponseBodyBytesReceived = measured.responseBodySize
  }
}
