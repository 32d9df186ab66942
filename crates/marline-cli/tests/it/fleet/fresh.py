"""Opens a new stream through each of the clients' SOCKS5 ports, which start at PORT, all concurrently. Prints for each
the seconds until the service at the other end had sent the name of its member, and that name: `SECONDS MEMBER`.
"""
import socket, sys, threading, time

PORT, PORTS = (int(word) for word in sys.argv[1:])
# Time limit for each stream.
PATIENCE_S = 60
REQUEST = b"\5\1\0\1" + bytes([127, 0, 0, 1]) + (9000).to_bytes(2, "big")
said = []


def fresh(port):
    begun = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as stream:
            replies = stream.makefile("rb")
            stream.sendall(b"\5\1\0")
            replies.read(2)
            stream.sendall(REQUEST)
            status = replies.read(10)[1]
            member = "refused" if status else replies.readline().decode().strip()
    except (OSError, IndexError) as error:
        member = repr(error)
    said.append(f"{time.monotonic() - begun:.3f} {member}")


threads = [threading.Thread(target=fresh, args=(PORT + number,)) for number in range(PORTS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("\n".join(said))
