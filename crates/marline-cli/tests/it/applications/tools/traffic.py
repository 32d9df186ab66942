"""Echoes over one TCP connection, over UDP and over new connections. `server` serves them; `client` checks each answer
until the file `end` exists, and prints the longest time without an answer of each kind, except while `outage` exists,
and the addresses from which the server was reached."""

import os
import socket
import sys
import threading
import time

TARGET = ("8.8.4.1", 7007)


def serve():
    def datagrams():
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(TARGET)
        while True:
            data, peer = udp.recvfrom(2000)
            try:
                udp.sendto(data + peer[0].encode(), peer)
            except OSError as error:
                print(f"a datagram from {peer[0]} bypassed the tunnel: {error}", flush=True)

    def echo(stream, peer):
        stream.sendall(peer[0].encode().ljust(16))
        while data := stream.recv(65536):
            stream.sendall(data)

    threading.Thread(target=datagrams, daemon=True).start()
    listener = socket.create_server(TARGET)
    while True:
        threading.Thread(target=echo, args=listener.accept(), daemon=True).start()


def receive(stream, count):
    data = b""
    while len(data) < count:
        got = stream.recv(count - len(data))
        assert got, "the connection was closed"
        data += got
    return data


def repeat(kind, answer):
    """Calls `answer` until the end, which returns the address seen by the server, or None without an answer."""
    last, longest, count, seen = time.monotonic(), 0, 0, set()
    while not os.path.exists("end"):
        try:
            address = answer(count)
        except OSError as error:
            address = None
            if kind == "tcp":
                print(f"tcp: failed: {error}", flush=True)
                return
        now = time.monotonic()
        if os.path.exists("outage"):
            last = now
        if address is not None:
            longest = max(longest, now - last)
            last = now
            seen.add(address)
        count += 1
        time.sleep(0.02)
    longest = max(longest, time.monotonic() - last)
    # One write, as other threads print, too.
    sys.stdout.write(f"{kind}: {count} rounds, longest {longest * 1e3:.0f} ms, from {' '.join(sorted(seen))}\n")
    sys.stdout.flush()


def open_stream(timeout):
    stream = socket.create_connection(TARGET, timeout)
    stream.settimeout(timeout)
    return stream, receive(stream, 16).decode().strip()


def main():
    stream, address = open_stream(60)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.connect(TARGET)
    udp.settimeout(0.2)

    def tcp_round(number):
        record = b"%08d" % number * 25
        stream.sendall(record)
        assert receive(stream, len(record)) == record, "wrong data"
        return address

    def udp_round(number):
        record = b"%08d" % number * 25
        udp.send(record)
        data = udp.recv(2000)
        while data[:8] != record[:8]:
            data = udp.recv(2000)
        assert data[:200] == record, "wrong data"
        return data[200:].decode()

    def new_round(_):
        fresh, seen = open_stream(2)
        fresh.close()
        return seen

    kinds = [("tcp", tcp_round), ("udp", udp_round), ("new", new_round)]
    threads = [threading.Thread(target=repeat, args=kind) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if sys.argv[1] == "server":
    serve()
else:
    main()
