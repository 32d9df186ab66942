"""Opens COUNT Multipath TCP connections of the kernel to ADDRESS PORT. On each line of the pipe `go`, each connection
must echo a line. Prints the member of each connection, in order."""
import socket, sys

IPPROTO_MPTCP = 262
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connections = []
for number in range(count):
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    connection.settimeout(40)
    connection.connect((address, port))
    # The service at the other end first sends the name of its member.
    stream = connection.makefile("rwb")
    connections.append((stream, stream.readline().decode().strip()))
    print("connected", flush=True)
print("ready", flush=True)
while True:
    with open("go") as go:
        # The writer of the line before may not have closed the pipe yet.
        if not go.readline():
            continue
    for stream, member in connections:
        text = f"at {member}, always\n".encode()
        stream.write(text)
        stream.flush()
        assert stream.readline() == text
    print("round", *(member for _, member in connections), flush=True)
