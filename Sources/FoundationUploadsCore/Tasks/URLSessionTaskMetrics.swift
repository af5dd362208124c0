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
  /// The host's name was looked up.
  public let domainLookupStartDate: Date?
  /// The host's address was known.
  public let domainLookupEndDate: Date?
  /// The TCP connection was begun.
  public let connectStartDate: Date?
  /// The TLS handshake began.
  public let secureConnectionStartDate: Date?
  /// The TLS handshake was over.
  public let secureConnectionEndDate: Date?
  /// The connection stood, with TLS if the URL asks for it.
  public let connectEndDate: Date?
  /// The first byte of the request was sent.
  public let requestStartDate: Date?
  /// The last byte of the body was handed to the connection.
  public let requestEndDate: Date?
  /// The head of the final response was there.
  public let responseStartDate: Date?
  /// The last byte of the response was there.
  public let responseEndDate: Date?

  /// By its name in ALPN: `http/1.1`, `h2`.
  public let networkProtocolName: String?
  /// Whether an earlier request has made the connection.
  public let isReusedConnection: Bool
  /// This machine's IP address.
  public let localAddress: String?
  /// This machine's port.
  public let localPort: Int?
  /// The server's IP address, or that of a proxy.
  public let remoteAddress: String?
  /// The server's port, or that of a proxy.
  public let remotePort: Int?
  /// Bytes of the request line and the fields.
  public let countOfRequestHeaderBytesSent: Int64
  /// Bytes of the body, without framing.
  public let countOfRequestBodyBytesSent: Int64
  /// Interim responses included.
  public let countOfResponseHeaderBytesReceived: Int64
  /// Bytes of the body, without framing.
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
