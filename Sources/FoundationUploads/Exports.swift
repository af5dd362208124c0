// The names that an import of FoundationUploads provides: Foundation, Sluice's classes under Apple's names, and the
// types of FoundationNetworking that they use.
//
// Each is exported by its name. Such an import takes precedence over that of a whole module, so that a file that also
// imports FoundationNetworking has no ambiguity. Exporting the whole core would be ambiguous.

@_exported public import Foundation

@_exported public import class FoundationNetworking.HTTPURLResponse
@_exported public import let FoundationNetworking.NSURLAuthenticationMethodClientCertificate
@_exported public import let FoundationNetworking.NSURLAuthenticationMethodHTTPBasic
@_exported public import let FoundationNetworking.NSURLAuthenticationMethodServerTrust
@_exported public import let FoundationNetworking.NSURLProtectionSpaceHTTP
@_exported public import let FoundationNetworking.NSURLProtectionSpaceHTTPS
@_exported public import let FoundationNetworking.NSURLSessionTransferSizeUnknown
@_exported public import class FoundationNetworking.URLAuthenticationChallenge
@_exported public import class FoundationNetworking.URLCredential
@_exported public import class FoundationNetworking.URLCredentialStorage
@_exported public import class FoundationNetworking.URLProtectionSpace
@_exported public import struct FoundationNetworking.URLRequest
@_exported public import class FoundationNetworking.URLResponse
@_exported public import class FoundationUploadsCore.URLSession
@_exported public import class FoundationUploadsCore.URLSessionConfiguration
@_exported public import protocol FoundationUploadsCore.URLSessionDataDelegate
@_exported public import class FoundationUploadsCore.URLSessionDataTask
@_exported public import protocol FoundationUploadsCore.URLSessionDelegate
@_exported public import protocol FoundationUploadsCore.URLSessionDownloadDelegate
@_exported public import class FoundationUploadsCore.URLSessionDownloadTask
@_exported public import class FoundationUploadsCore.URLSessionTask
@_exported public import protocol FoundationUploadsCore.URLSessionTaskDelegate
@_exported public import class FoundationUploadsCore.URLSessionTaskMetrics
@_exported public import class FoundationUploadsCore.URLSessionTaskTransactionMetrics
@_exported public import class FoundationUploadsCore.URLSessionUploadTask
