#!/usr/bin/env python3
"""read-stream.py: writes the bytes of one stream that `sluice serve --store` has stored, read from NATS JetStream.

    read-stream.py HOST:PORT STREAM-ID >recording.wav

Needs nothing but Python. docs/jetstream.md describes the messages. Exits with 1 if a byte is missing or damaged, or if
the stream has no complete upload.
"""

import base64
import json
import socket
import sys
import zlib


class Broker:
    """A connection that asks one question after another."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.connection = socket.create_connection((host, int(port)), timeout=20)
        self.lines = self.connection.makefile("rb")
        self.lines.readline()  # INFO
        self.send('CONNECT {"verbose":false,"headers":true}\r\nSUB answers 1\r\n')

    def send(self, text):
        self.connection.sendall(text.encode())

    def ask(self, subject, question):
        self.send(f"PUB {subject} answers {len(question)}\r\n{question}\r\n")
        while True:
            words = self.lines.readline().split()
            if not words:
                sys.exit("read-stream.py: the broker has closed the connection")
            if words[0] == b"PING":
                self.send("PONG\r\n")
            elif words[0] == b"MSG":
                answer = self.lines.read(int(words[-1]) + 2)[:-2]
                return json.loads(answer)
            elif words[0] == b"HMSG":
                sys.exit("read-stream.py: nobody answers for JetStream")
            elif words[0] == b"-ERR":
                sys.exit(f"read-stream.py: the broker refuses: {b' '.join(words).decode()}")


def messages(broker, name):
    """All messages of the JetStream stream: headers and payload of each."""
    sequence = 1
    while True:
        question = json.dumps({"seq": sequence, "next_by_subj": f"{name}.*"})
        message = broker.ask(f"$JS.API.STREAM.MSG.GET.{name}", question).get("message")
        if message is None:
            return
        lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) if ": " in line else line.split(":", 1) for line in lines if line)
        yield headers, base64.b64decode(message.get("data", ""))
        sequence = message["seq"] + 1


def main():
    address, stream = sys.argv[1:]
    written, complete = 0, False
    for headers, payload in messages(Broker(address), "sluice"):
        if headers.get("Stream-ID") != stream:
            continue
        if int(headers["Sluice-CRC32"], 16) != zlib.crc32(payload):
            sys.exit(f"read-stream.py: the message at {headers['Stream-Offset']} is damaged")
        if int(headers["Stream-Offset"]) != written:
            sys.exit(f"read-stream.py: bytes are missing between {written} and {headers['Stream-Offset']}")
        sys.stdout.buffer.write(payload)
        written += len(payload)
        complete = complete or headers.get("Upload-Complete") == "?1"
    if not complete:
        sys.exit(f"read-stream.py: the stream is not complete; it has {written} bytes")


main()
