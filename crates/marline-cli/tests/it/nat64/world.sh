#!/bin/bash
# Namespaces for the tests of networks with IPv6 only. Runs in network and mount namespaces of its own, which are the
# networks between a server that has only IPv4 and a client whose WiFi has only IPv4 and whose cellular network has only
# IPv6, with a translator (NAT64, on a TUN interface) and a resolver (DNS64). Prints "ROLE PID" for each namespace that
# can be joined, then "ready", and runs until its standard input ends.
set -eu
dir=$1
here=$(dirname "$0")
source "$here/../support/wires.sh"

unshare --net sleep infinity & server=$!
unshare --net sleep infinity & client=$!
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
await_namespaces "$server" "$client"

wire s0 9.9.9.254 "$server" eth0 9.9.9.1 100
wire c0 192.168.1.1 "$client" wlan0 192.168.1.2 100
ip link add c1 type veth peer name wwan0 netns "$client"
# Router advertisements are sent from the link-local address, which would otherwise be tentative for a second or two.
echo 0 > /proc/sys/net/ipv6/conf/c1/accept_dad
ip addr add 2001:db8:70::1/64 dev c1 nodad
ip link set c1 up
on "$client" ip addr add 2001:db8:70::2/64 dev wwan0 nodad
on "$client" ip link set wwan0 up
on "$client" ip -6 route add default via 2001:db8:70::1 dev wwan0 metric 200
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding

# Resolvers in order: first the WiFi's resolver, which does not support DNS64.
printf 'nameserver 192.168.1.1\nnameserver 2001:db8:70::1\noptions timeout:1\n' > "$dir/resolv.conf"
mount --bind "$dir/resolv.conf" /etc/resolv.conf
: > "$dir/translator"
python3 "$here/translator.py" >> "$dir/translator" 2>&1 &
until grep -q translating "$dir/translator"; do
    kill -0 $! || { cat "$dir/translator" >&2; exit 1; }
    sleep 0.05
done
ip addr add 10.64.0.1/24 dev nat64
ip link set nat64 mtu 1500 up
ip -6 route add 2001:db8:64::/96 dev nat64

echo "server $server"
echo "client $client"
echo "net $$"
echo ready
cat > /dev/null
