// The settings of a session, under Apple's names.

public import Foundation
public import FoundationNetworking
internal import TransferClient

/// The settings of a ``URLSession``. A session copies them, so later changes have no effect on it.
open class URLSessionConfiguration: NSObject, NSCopying, @unchecked Sendable {
  /// A new configuration each time, which the program may change.
  open class var `default`: URLSessionConfiguration { URLSessionConfiguration() }
  /// The same as ``default``, because a session stores nothing on disk.
  open class var ephemeral: URLSessionConfiguration { URLSessionConfiguration() }

  /// A configuration for transfers of files that outlive the program. The agent performs them (`sluice agent`).
  ///
  /// A session with the same identifier gets the tasks of the one before, even in another process, and its delegate
  /// receives the missed events. An identifier has one session at a time per user and machine.
  ///
  /// - Parameter identifier: such as `com.example.uploads`. If it is empty, all tasks fail.
  open class func background(withIdentifier identifier: String) -> URLSessionConfiguration {
    let configuration = URLSessionConfiguration()
    configuration.chosenIdentifier = identifier
    return configuration
  }

  private var chosenIdentifier: String?
  /// The identifier of a background session. Nil for others.
  open var identifier: String? { chosenIdentifier }

  public override init() {}

  /// The time in seconds that the server may leave data unanswered. A stream whose source is silent does not count. A
  /// request's own `timeoutInterval` takes precedence if it is not 60, which is its default.
  open var timeoutIntervalForRequest: TimeInterval = 60
  /// The longest duration of a task in seconds.
  open var timeoutIntervalForResource: TimeInterval = 7 * 24 * 3600
  /// The time in seconds in which the session tries to resume an upload after an interruption. After it, the task fails
  /// with resume data. Not a member of Apple's class.
  open var timeoutIntervalForResumption: TimeInterval = 20
  /// Whether a task waits for a server that cannot be reached.
  open var waitsForConnectivity = false
  /// For a background session: whether its transfers can wait for a good time. They run after others, small ones first,
  /// and never over a metered connection.
  open var isDiscretionary = false
  /// For a background session: whether its transfers run over a connection that NetworkManager reports as metered or
  /// probably metered.
  open var allowsExpensiveNetworkAccess = true
  /// For a background session: whether its transfers run over a connection that the user has set to be metered.
  open var allowsConstrainedNetworkAccess = true
  /// Fields to add to all requests that do not have them.
  open var httpAdditionalHeaders: [AnyHashable: Any]?
  /// The path of the `sluice` command, which is the agent of background sessions. Nil uses the command that the
  /// environment variable `SLUICE` names, or the first on `PATH`. Not a member of Apple's class.
  open var agentExecutable: String?
  /// The agent's location, if it differs from the environment's.
  var agentLocation: AgentLocation?
  /// The storage whose default credential answers a challenge if no delegate answers it.
  open var urlCredentialStorage: URLCredentialStorage?
  /// A PEM file of the certificate authorities to trust instead of the system's. Not a member of Apple's class, whose
  /// `serverTrust` does not exist here.
  open var certificateAuthorityFile: String?
  /// A PEM file with the client's certificate, and its key unless ``clientKeyFile`` has it. Not a member of Apple's
  /// class.
  open var clientCertificateFile: String?
  /// A PEM file with the key of ``clientCertificateFile``. Not a member of Apple's class.
  open var clientKeyFile: String?

  open func copy(with zone: NSZone? = nil) -> Any {
    let copy = URLSessionConfiguration()
    copy.chosenIdentifier = chosenIdentifier
    (copy.agentExecutable, copy.agentLocation) = (agentExecutable, agentLocation)
    copy.timeoutIntervalForRequest = timeoutIntervalForRequest
    copy.timeoutIntervalForResource = timeoutIntervalForResource
    copy.timeoutIntervalForResumption = timeoutIntervalForResumption
    copy.isDiscretionary = isDiscretionary
    copy.allowsExpensiveNetworkAccess = allowsExpensiveNetworkAccess
    copy.allowsConstrainedNetworkAccess = allowsConstrainedNetworkAccess
    copy.waitsForConnectivity = waitsForConnectivity
    copy.httpAdditionalHeaders = httpAdditionalHeaders
    copy.urlCredentialStorage = urlCredentialStorage
    copy.certificateAuthorityFile = certificateAuthorityFile
    copy.clientCertificateFile = clientCertificateFile
    copy.clientKeyFile = clientKeyFile
    return copy
  }
}
