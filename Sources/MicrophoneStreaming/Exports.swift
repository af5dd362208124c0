// A program that streams a microphone needs one import.

@_exported public import AudioCapture
@_exported public import LiveStreaming
