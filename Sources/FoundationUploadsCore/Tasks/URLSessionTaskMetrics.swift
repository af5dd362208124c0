// The measurements of a task, per request.

public import Foundation
public import FoundationNetworking
internal import UploadClient

/// The measurements of a task that has ended.
open class URLSessionTaskMetrics: NSObject, @unchecked Sendable {
  /// The measurements of each request, in the order of their ends: redirects, challenges, the queries and appends of a
  /// resumable upload.
  public let transactionMetrics: [URLSessionTaskTransactionMetrics]
  /// The time from the task's first ``URLSessionTask/resume()`` to its end.
  public let taskInterval: DateInterval
  /// The number of followed redirects.
  public let redirectCount: Int

  init(_ transactions: [URLSessionTaskTransactionMetrics], _ interval: DateInterval, redirects: Int) {
    (transactionMetrics, taskInterval, redirectCount) = (transactions, interval, redirects)
  }
}

/// The measurements of one request and its response. Dates are nil for events that did not occur, and for the
/// connection if the request reused one.
open class URLSessionTaskTransactionMetrics: NSObject, @unchecked Sendable {
  /// The request as it was sent, without fields of the connection.
  public let request: URLRequest
  /// The response, or nil.
  public let response: URLResponse?

  /// The start of the request.
  public let fetchStartDate: Date?
  /// The start of the name lookup.
  public let domainLookupStartDate: Date?
  /// The end of the name lookup.
  public let domainLookupEndDate: Date?
  /// The start of the TCP connection.
  public let connectStartDate: Date?
  /// The start of the TLS handshake.
  public let secureConnectionStartDate: Date?
  /// The end of the TLS handshake.
  public let secureConnectionEndDate: Date?
  /// The time when the connection was established, including TLS if the URL requires it.
  public let connectEndDate: Date?
  /// The time when the first byte of the request was sent.
  public let requestStartDate: Date?
  /// The time when the last byte of the body was passed to the connection.
  public let requestEndDate: Date?
  /// The time when the head of the final response arrived.
  public let responseStartDate: Date?
  /// The time when the last byte of the response arrived.
  public let responseEndDate: Date?

  /// The name of the protocol in ALPN: `http/1.1`, `h2`.
  public let networkProtocolName: String?
  /// Whether an earlier request established the connection.
  public let isReusedConnection: Bool
  /// This machine's IP address.
  public let localAddress: String?
  /// This machine's port.
  public let localPort: Int?
  /// The server's IP address, or that of a proxy.
  public let remoteAddress: String?
  /// The server's port, or that of a proxy.
  public let remotePort: Int?
  /// The number of bytes of the request line and the fields.
  public let countOfRequestHeaderBytesSent: Int64
  /// The number of bytes of the body, without framing.
  public let countOfRequestBodyBytesSent: Int64
  /// The number of bytes of the response heads, including interim responses.
  public let countOfResponseHeaderBytesReceived: Int64
  /// The number of bytes of the body, without framing.
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
