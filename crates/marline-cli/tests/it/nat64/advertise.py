# Sends a router advertisement with a NAT64 prefix (RFC 8781) on an interface: INTERFACE PREFIX LIFETIME, in seconds. It
# does not announce a default router.
import ipaddress, socket, struct, sys

interface, network, lifetime = sys.argv[1], ipaddress.IPv6Network(sys.argv[2]), int(sys.argv[3])
code = {96: 0, 64: 1, 56: 2, 48: 3, 40: 4, 32: 5}[network.prefixlen]
option = struct.pack("!BBH", 38, 2, lifetime // 8 << 3 | code) + network.network_address.packed[:12]
# Hop limit 64, no flags, no lifetime as a router, no timers. The kernel fills in the checksum.
message = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 0, 0, 0) + option
index = socket.if_nametoindex(interface)
out = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
# Receivers ignore advertisements with a lower hop limit, because they may have been forwarded.
out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
out.sendto(message, ("ff02::1", 0, 0, index))
