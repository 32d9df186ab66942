#!/usr/bin/env python3
"""Sends datagrams of many sizes to an echo service and prints which were lost: sizes.py HOST PORT COUNT [SOCKS_PORT].

Each size is sent COUNT times, one datagram at a time. Prints "SIZE: ARRIVED of COUNT" for each, and "errno N" for
datagrams that the system refused."""
import socket
import struct
import sys
import time

SIZES = [200, 1_000, 1_140, 1_172, 1_200, 1_250, 1_316, 1_400, 1_472, 1_500, 3_000, 8_192]


def associate(port):
    """Opens a SOCKS5 UDP association. Returns its TCP connection, and the address to which datagrams are sent."""
    control = socket.create_connection(("127.0.0.1", port))
    control.sendall(b"\x05\x01\x00")
    control.recv(2)
    control.sendall(b"\x05\x03\x00\x01" + bytes(6))
    reply = control.recv(10)
    assert reply[1] == 0, reply
    return control, ("127.0.0.1", struct.unpack("!H", reply[8:10])[0])


def main():
    host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(0.1)
    to, head, control = (host, port), b"", None
    if len(sys.argv) > 4:
        control, to = associate(int(sys.argv[4]))
        head = b"\x00\x00\x00\x01" + socket.inet_aton(host) + struct.pack("!H", port)
    number = 0
    for size in SIZES:
        arrived = 0
        for _ in range(count):
            number += 1
            payload = struct.pack("!Q", number) + bytes(size - 8)
            try:
                sock.sendto(head + payload, to)
            except OSError as error:
                print(f"errno {error.errno}", flush=True)
                continue
            end = time.monotonic() + 2
            while time.monotonic() < end:
                try:
                    answer = sock.recv(20_000)
                except TimeoutError:
                    continue
                except OSError as error:
                    print(f"errno {error.errno}", flush=True)
                    break
                if answer[len(head):] == payload:
                    arrived += 1
                    break
        print(f"{size}: {arrived} of {count}", flush=True)
    print("done", flush=True)


main()
