# A NAT64 translator on a TUN interface, and a DNS64 resolver, with only the features that the tests need: one client,
# TCP, UDP and "packet too big". The translation is stateless (RFC 7915): the client's IPv4 address is 10.64.0.2.
import fcntl, ipaddress, os, socket, struct, threading

PREFIX = ipaddress.IPv6Address("2001:db8:64::").packed[:12]
CLIENT6 = ipaddress.IPv6Address("2001:db8:70::2").packed
CLIENT4 = bytes([10, 64, 0, 2])
SERVER = bytes([9, 9, 9, 1])
TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58


def total(data):
    if len(data) % 2:
        data += b"\0"
    value = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value


# Updates the checksum, which covers the addresses: subtracts the old ones and adds the new ones.
def moved(protocol, payload, old, new):
    at = {TCP: 16, UDP: 6}[protocol]
    (before,) = struct.unpack_from("!H", payload, at)
    value = (~before & 0xFFFF) + (~total(old) & 0xFFFF) + total(new)
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    checksum = ~value & 0xFFFF
    if protocol == UDP and checksum == 0:
        checksum = 0xFFFF
    return payload[:at] + struct.pack("!H", checksum) + payload[at + 2:]


def to_ipv4(packet):
    protocol, hops, source, target = packet[6], packet[7], packet[8:24], packet[24:40]
    if source != CLIENT6 or target[:12] != PREFIX or protocol not in (TCP, UDP):
        return None
    payload = moved(protocol, packet[40:], source + target, CLIENT4 + target[12:])
    traffic_class = (packet[0] << 4 | packet[1] >> 4) & 0xFF
    header = struct.pack("!BBHHHBBH", 0x45, traffic_class, 20 + len(payload), 0, 0x4000, hops - 1, protocol, 0)
    header += CLIENT4 + target[12:]
    checksum = struct.pack("!H", ~total(header) & 0xFFFF)
    return header[:10] + checksum + header[12:] + payload


def to_ipv6(packet):
    size = (packet[0] & 15) * 4
    protocol, hops, source, target = packet[9], packet[8], packet[12:16], packet[16:20]
    if target != CLIENT4 or protocol not in (TCP, UDP):
        return None
    payload = moved(protocol, packet[size:], source + target, PREFIX + source + CLIENT6)
    word = 6 << 28 | packet[1] << 20
    return struct.pack("!IHBB", word, len(payload), protocol, hops - 1) + PREFIX + source + CLIENT6 + payload


# Returns the translator's error for a packet that does not fit into the MTU behind it.
def too_big(packet, mtu):
    quoted = packet[:28]
    message = struct.pack("!BBHHH", 3, 4, 0, 0, mtu - 20)
    message = message[:2] + struct.pack("!H", ~total(message + quoted) & 0xFFFF) + message[4:] + quoted
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(message), 0, 0, 64, ICMP, 0) + packet[16:20] + packet[12:16]
    return header[:10] + struct.pack("!H", ~total(header) & 0xFFFF) + header[12:] + message


def answer(query, translated):
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    (kind,) = struct.unpack_from("!H", query, at + 1)
    question, name = query[12:at + 5], ".".join(labels)
    known = {"ipv4only.arpa": [bytes([192, 0, 0, n]) for n in (170, 171)], "server.example": [SERVER]}
    records = []
    for address in known.get(name, []):
        if kind == 1:
            records.append(address)
        elif kind == 28 and translated:
            records.append(PREFIX + address)
    code = 0 if name in known else 3
    text = query[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(records), 0, 0) + question
    for record in records:
        text += struct.pack("!HHHIH", 0xC00C, kind, 1, 60, len(record)) + record
    return text


def resolve():
    port = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    port.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    port.bind(("::", 53))
    # Answers are sent from the address that received the query.
    port.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    while True:
        query, info, _, sender = port.recvmsg(2048, 256)
        reply = answer(query, not sender[0].startswith("::ffff:"))
        port.sendmsg([reply], info, 0, sender)


tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"nat64", 0x1001))
threading.Thread(target=resolve, daemon=True).start()
print("translating", flush=True)
while True:
    packet = os.read(tun, 65536)
    if packet[0] >> 4 == 6:
        out = to_ipv4(packet)
    elif len(packet) + 20 > 1500:
        out = too_big(packet, 1500)
    else:
        out = to_ipv6(packet)
    if out:
        os.write(tun, out)
