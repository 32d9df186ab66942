"""A resolver for the names in a file of `NAME ADDRESS` lines, read for each query. Arguments: address, file."""
import ipaddress
import socket
import struct
import sys

A, AAAA = 1, 28
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.bind((sys.argv[1], 53))
print("ready")
while True:
    query, sender = port.recvfrom(512)
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    (kind,) = struct.unpack("!H", query[at + 1 : at + 3])
    name, records = ".".join(labels), b""
    lines = [line.split() for line in open(sys.argv[2]) if line.strip()]
    known = [ipaddress.ip_address(address) for of, address in lines if of == name]
    fitting = [address for address in known if kind == (A if address.version == 4 else AAAA)]
    for address in fitting:
        data = address.packed
        records += struct.pack("!HHHIH", 0xC00C, kind, 1, 1, len(data)) + data
    flags = 0x8180 if known else 0x8183
    head = query[:2] + struct.pack("!HHHHH", flags, 1, len(fitting), 0, 0)
    port.sendto(head + query[12 : at + 5] + records, sender)
