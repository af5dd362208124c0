// Resume data in an error, by Apple's names.

public import Foundation

/// The key of resume data in the error of an upload task.
// swift-format-ignore: AlwaysUseLowerCamelCase
public let NSURLSessionUploadTaskResumeData = "NSURLSessionUploadTaskResumeData"
/// The key of resume data in the error of a download task.
// swift-format-ignore: AlwaysUseLowerCamelCase
public let NSURLSessionDownloadTaskResumeData = "NSURLSessionDownloadTaskResumeData"

extension URLError {
  /// What ``FoundationUploadsCore/URLSession/uploadTask(withResumeData:)`` continues with; nil if the upload cannot be
  /// resumed.
  public var uploadTaskResumeData: Data? { userInfo[NSURLSessionUploadTaskResumeData] as? Data }
  /// What ``FoundationUploadsCore/URLSession/downloadTask(withResumeData:)`` continues with; nil if the download cannot
  /// be resumed.
  public var downloadTaskResumeData: Data? { userInfo[NSURLSessionDownloadTaskResumeData] as? Data }
}
