// The times and sizes of a request, for reports.

internal import CCurl
internal import EventLoops
internal import Glibc

/// Times and counts of one request, as far as it has progressed.
package final class RequestMeasurements: Sendable {
  /// By the wall clock, in seconds since 1970.
  package let start: Double
  // Seconds since then. Nil for events that did not occur for this request.
  package let nameLookupEnd: Double?
  package let connectEnd: Double?
  /// The end of the TLS handshake, which begins with ``connectEnd``.
  package let secureConnectionEnd: Double?
  /// The connection is established, and the head is about to be sent.
  package let requestStart: Double?
  /// The last byte of the content was passed to libcurl.
  package let requestEnd: Double?
  /// The head of the final response arrived.
  package let responseStart: Double?
  package let end: Double

  /// Whether an earlier request used the connection.
  package let isConnectionReused: Bool
  /// The name of the protocol in ALPN (RFC 7301): `http/1.1`, `h2`. Nil before a response.
  package let protocolName: String?
  package let (localAddress, remoteAddress): (String?, String?)
  package let (localPort, remotePort): (Int?, Int?)
  // In bytes, without framing of the content.
  package let requestHeadSize: Int64
  package let requestBodySize: Int64
  package let responseHeadSize: Int64
  package let responseBodySize: Int64

  init(_ transfer: CurlTransfer, clock: RequestClock) {
    let easy = transfer.easy
    func time(_ info: CURLINFO) -> Double? {
      var microseconds: curl_off_t = 0
      guard sluice_getinfo_offset(easy, info, &microseconds) == CURLE_OK, microseconds > 0 else { return nil }
      return Double(microseconds) / 1e6
    }
    func number(_ info: CURLINFO) -> Int? {
      var value = 0
      return sluice_getinfo_long(easy, info, &value) == CURLE_OK ? value : nil
    }
    func text(_ info: CURLINFO) -> String? {
      guard let text = sluice_getinfo_string(easy, info), text.pointee != 0 else { return nil }
      return String(cString: text)
    }
    start = clock.wall
    let requestStart = time(CURLINFO_PRETRANSFER_TIME_T)
    self.requestStart = requestStart
    isConnectionReused = requestStart != nil && number(CURLINFO_NUM_CONNECTS) == 0
    nameLookupEnd = isConnectionReused ? nil : time(CURLINFO_NAMELOOKUP_TIME_T)
    connectEnd = isConnectionReused ? nil : time(CURLINFO_CONNECT_TIME_T)
    secureConnectionEnd = isConnectionReused ? nil : time(CURLINFO_APPCONNECT_TIME_T)
    // libcurl's own time is that of an upload's first byte. A request without content has ended as soon as it may
    // begin.
    requestEnd = transfer.task.contentEndedAt.map { max(($0 - clock.start).seconds, requestStart ?? 0) }
    responseStart = clock.response.map { ($0 - clock.start).seconds }
    end = (MonotonicInstant.now - clock.start).seconds
    protocolName =
      switch number(CURLINFO_HTTP_VERSION) {
      case CURL_HTTP_VERSION_1_0: "http/1.0"
      case CURL_HTTP_VERSION_1_1: "http/1.1"
      case CURL_HTTP_VERSION_2_0: "h2"
      default: nil
      }
    (localAddress, remoteAddress) = (text(CURLINFO_LOCAL_IP), text(CURLINFO_PRIMARY_IP))
    localPort = number(CURLINFO_LOCAL_PORT).flatMap { $0 > 0 ? $0 : nil }
    remotePort = number(CURLINFO_PRIMARY_PORT).flatMap { $0 > 0 ? $0 : nil }
    requestHeadSize = Int64(number(CURLINFO_REQUEST_SIZE) ?? 0)
    requestBodySize = Int64(clamping: transfer.task.sentByteCount)
    responseHeadSize = Int64(transfer.task.responseHeaderByteCount)
    responseBodySize = Int64(clamping: transfer.responseByteCount)
  }
}

/// The times of a request that libcurl does not report.
struct RequestClock {
  /// In seconds since 1970.
  let wall: Double
  let start = MonotonicInstant.now
  var response: MonotonicInstant?

  init() {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    wall = Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
  }
}
