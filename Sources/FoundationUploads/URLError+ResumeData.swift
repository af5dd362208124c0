// Resume data in an error, under Apple's names.

public import Foundation

// swift-format-ignore: AlwaysUseLowerCamelCase
/// The key of resume data in the error of an upload task.
public let NSURLSessionUploadTaskResumeData = "NSURLSessionUploadTaskResumeData"
// swift-format-ignore: AlwaysUseLowerCamelCase
/// The key of resume data in the error of a download task.
public let NSURLSessionDownloadTaskResumeData = "NSURLSessionDownloadTaskResumeData"

extension URLError {
  /// The argument for ``FoundationUploadsCore/URLSession/uploadTask(withResumeData:)``. Nil if the upload cannot be
  /// resumed.
  public var uploadTaskResumeData: Data? { userInfo[NSURLSessionUploadTaskResumeData] as? Data }
  /// The argument for ``FoundationUploadsCore/URLSession/downloadTask(withResumeData:)``. Nil if the download cannot be
  /// resumed.
  public var downloadTaskResumeData: Data? { userInfo[NSURLSessionDownloadTaskResumeData] as? Data }
}
