// Why a directory cannot be stored into.

package enum DirectoryError: Error {
  /// It cannot be made or opened.
  case missing(reason: String)
  /// The names of the files in it cannot be read.
  case unreadable(reason: String)
  /// No file can be made in it.
  case unwritable(reason: String)
  /// Another server stores into it.
  case inUse
  /// A collector has stored into it, and its next start takes back what others have.
  case collected
}
