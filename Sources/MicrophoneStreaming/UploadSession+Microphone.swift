// A microphone's stream in one call.

public import AudioCapture
public import LiveStreaming
internal import StreamBuffers
public import UploadClient

extension UploadSession {
  /// Streams a microphone, and resumes after every interruption.
  ///
  /// The capture starts at once, even if the server cannot be reached. The buffer has room for a minute. While it is
  /// full, the oldest bytes are discarded and reported. The sidecar of the recording states the device and its format.
  ///
  /// - Parameters:
  ///   - microphone: a microphone that is not started.
  ///   - url: an absolute `http` or `https` URL.
  ///   - container: the file format of the stream.
  /// - Throws: ``LiveStreaming/LiveStreamError`` of kind ``LiveStreaming/LiveStreamError/Kind/source`` when memory for
  ///   the buffer is refused.
  public func stream(
    _ microphone: Microphone, to url: String, container: MicrophoneSource.Container = .wav
  ) throws(LiveStreamError) -> LiveStreamTask {
    let source = MicrophoneSource(microphone, container: container)
    var configuration = LiveStreamConfiguration(to: url, contentType: source.contentType)
    configuration.buffer = .time(.seconds(60), bytesPerSecond: microphone.format.bytesPerSecond)
    configuration.description = source.description
    return try stream(source, configuration: configuration)
  }
}

extension Microphone {
  /// Opens a capture device for 48,000 frames per second of one channel with 16 bits.
  ///
  /// - Parameter device: any ALSA PCM name, such as `default`, `hw:1` or `hw:CARD=Mic`.
  /// - Throws: ``MicrophoneError``
  public convenience init(device: String) throws(MicrophoneError) {
    try self.init(MicrophoneConfiguration(device: device))
  }
}
