// Resume data in an error, by Apple's names.

public import Foundation

// swift-format-ignore: AlwaysUseLowerCamelCase
/// The key of resume data in the error of an upload task.
public let NSURLSessionUploadTaskResumeData = "NSURLSessionUploadTaskResumeData"
// swift-format-ignore: AlwaysUseLowerCamelCase
/// The key of resume data in the error of a download task.
public let NSURLSessionDownloadTaskResumeData = "NSURLSessionDownloadTaskResumeData"

extension URLError {
  /// What ``FoundationUploadsCore/URLSession/uploadTask(withResumeData:)`` continues with; nil if the upload cannot be
  /// resumed.
  public var uploadTaskResumeData: Data? { userInfo[NSURLSessionUploadTaskResumeData] as? Data }
  /// What ``FoundationUploadsCore/URLSession/downloadTask(withResumeData:)`` continues with; nil if the download cannot
  /// be resumed.
  public var downloadTaskResumeData: Data? { userInfo[NSURLSessionDownloadTaskResumeData] as? Data }
}
