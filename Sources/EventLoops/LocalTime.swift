// Computes when the wall clock shows a time of day.

internal import Glibc

/// The local time of this machine (localtime_r(3), mktime(3)), which depends on `TZ` and the machine's time zone.
package enum LocalTime {
  /// The last millisecond of the year 9999.
  private static let latest: Int64 = 253_402_300_799_999

  /// The next moment at which the local clock shows this time of day, in milliseconds since 1970. Nil after the year
  /// 9999. If clocks are moved forward over this time, the moment is up to an hour later.
  ///
  /// - Parameters:
  ///   - timeOfDay: since midnight, in whole minutes, less than a day.
  ///   - milliseconds: since 1970. The result is later than that.
  package static func next(_ timeOfDay: Duration, after milliseconds: Int64) -> Int64? {
    guard (0...latest).contains(milliseconds) else { return nil }
    // localtime_r(3) does not necessarily call it.
    tzset()
    var seconds = time_t(milliseconds / 1000)
    var day = tm()
    guard localtime_r(&seconds, &day) != nil else { return nil }
    let minutes = Int32(clamping: timeOfDay.components.seconds / 60)
    for later in Int32(0)...2 {
      var time = tm()
      (time.tm_year, time.tm_mon, time.tm_mday) = (day.tm_year, day.tm_mon, day.tm_mday + later)
      (time.tm_hour, time.tm_min, time.tm_isdst) = (minutes / 60, minutes % 60, -1)
      let moment = Int64(mktime(&time))
      if moment > milliseconds / 1000 { return moment * 1000 }
    }
    return nil
  }
}
