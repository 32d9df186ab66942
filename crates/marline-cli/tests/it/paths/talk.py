"""Sends a message to an echo service twenty times a second, and writes the number of answers into a file named after
the protocol. Arguments: `tcp` or `udp`, address, port."""
import os
import socket
import sys
import time

protocol, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
stream = protocol == "tcp"
end = socket.socket(socket.AF_INET, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM)
end.connect((address, port))
end.settimeout(None if stream else 0.2)
answered = 0
while True:
    text = b"%08d" % answered
    try:
        end.send(text)
        back = b""
        while len(back) < 8:
            part = end.recv(8 - len(back) if stream else 64)
            if not part:
                sys.exit("the stream has ended")
            back += part
        # A datagram may be the answer to an earlier message.
        answered += back == text
    except (TimeoutError, ConnectionRefusedError):
        if stream:
            raise
    with open(protocol + ".new", "w") as file:
        file.write(str(answered))
    os.rename(protocol + ".new", protocol)
    time.sleep(0.05)
