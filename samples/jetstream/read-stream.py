#!/usr/bin/env python3
"""read-stream.py: reads a stream that `sluice serve --store` has stored from NATS JetStream, and writes its bytes.

    read-stream.py HOST:PORT STREAM-ID [STORE-STREAM] >recording.wav

STORE-STREAM is the value of `--store-stream`. Requires only Python. See docs/jetstream.md for the messages. Exits with 1
if a byte is missing, if a message is damaged or was changed, if two streams have that id, or if the stream has no complete upload.
"""

import base64
import hashlib
import json
import socket
import sys
import zlib

# Sluice-Chain of a message is a digest of the one before it and of these headers, in this order.
LINKED = (
    "Stream-ID", "Stream-Offset", "Upload-Offset", "Upload-Length", "Upload-Complete", "Sluice-Number", "Sluice-Ended",
    "Sluice-Owner", "Sluice-Publisher", "Sluice-Request", "Content-Type", "Stream-Description", "Repr-Digest",
    "Sluice-CRC32",
)


class Broker:
    """A connection that sends one request after another."""

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
                sys.exit("read-stream.py: the broker does not run JetStream")
            elif words[0] == b"-ERR":
                sys.exit(f"read-stream.py: the broker refuses: {b' '.join(words).decode()}")


def messages(broker, name):
    """All messages of the JetStream stream: subject, headers and payload of each."""
    sequence = 1
    while True:
        question = json.dumps({"seq": sequence, "next_by_subj": f"{name}.*"})
        message = broker.ask(f"$JS.API.STREAM.MSG.GET.{name}", question).get("message")
        if message is None:
            return
        lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) if ": " in line else line.split(":", 1) for line in lines if line)
        yield message["subject"], headers, base64.b64decode(message.get("data", ""))
        sequence = message["seq"] + 1


def uploads(broker, name, stream):
    """The messages of each upload of the stream, by its subject."""
    found, identities = {}, set()
    for subject, headers, payload in messages(broker, name):
        if headers.get("Stream-ID") != stream:
            continue
        if request := headers.get("Sluice-Request"):
            # Any client may send any Stream-ID, so the owner and the path also identify a stream.
            identities.add((headers.get("Sluice-Owner"), request.split("?")[0].rsplit("/", 1)[-1]))
        found.setdefault(subject, []).append((headers, payload))
    if len(identities) > 1:
        sys.exit(f"read-stream.py: {len(identities)} streams have the id {stream}: {sorted(map(str, identities))}")
    return found.values()


def check_chain(upload):
    """Ends the program if a message of the upload was changed. The one after a missing message cannot be checked."""
    number, chain = 0, ""
    for headers, _ in upload:
        if int(headers["Sluice-Number"]) == number + 1:
            lines = [chain] + [headers.get(name, "") for name in LINKED]
            if hashlib.sha256("\n".join(lines).encode()).hexdigest() != headers["Sluice-Chain"]:
                sys.exit(
                    f"read-stream.py: message {number + 1} of an upload, at {headers['Stream-Offset']}, was changed, "
                    "or does not follow the one before it"
                )
        number, chain = int(headers["Sluice-Number"]), headers["Sluice-Chain"]


def main():
    address, stream, *name = sys.argv[1:]
    pieces, complete = [], False
    for upload in uploads(Broker(address), name[0] if name else "sluice", stream):
        last = upload[-1][0]
        is_complete = last.get("Upload-Complete") == "?1"
        if last.get("Sluice-Ended") == "cancelled" and not is_complete:
            continue
        check_chain(upload)
        complete = complete or is_complete
        pieces += [(int(headers["Stream-Offset"]), headers, payload) for headers, payload in upload if payload]
    written = 0
    for offset, headers, payload in sorted(pieces, key=lambda piece: piece[0]):
        if int(headers["Sluice-CRC32"], 16) != zlib.crc32(payload):
            sys.exit(f"read-stream.py: the message at {offset} is damaged")
        if offset > written:
            sys.exit(f"read-stream.py: bytes are missing between {written} and {offset}")
        # Uploads that follow one another may overlap.
        sys.stdout.buffer.write(payload[written - offset:])
        written = max(written, offset + len(payload))
    if not complete:
        sys.exit(f"read-stream.py: the stream is not complete; it has {written} bytes")


main()
