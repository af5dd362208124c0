// A program that streams a microphone needs only one import.

@_exported public import AudioCapture
@_exported public import LiveStreaming
