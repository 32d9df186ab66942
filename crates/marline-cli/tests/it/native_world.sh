#!/bin/bash
# Two machines for the tests of the native carrier: a client and a server, joined by two networks,
# IPv4 and IPv6. Runs in network and mount namespaces of its own. Prints "ROLE PID" for each namespace
# that can be joined, then "ready", and runs until its standard input ends.
set -eu
dir=$1
source "$(dirname "$0")/support/wires.sh"

cat > "$dir/hosts" <<HOSTS
127.0.0.1 localhost
10.91.1.1 server.example four.example
fd91:1::1 server.example six.example
HOSTS
mount --bind "$dir/hosts" /etc/hosts

unshare --net sleep infinity & server=$!
unshare --net sleep infinity & client=$!
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
await_namespaces "$server" "$client"

for pid in $server $client; do
    # Selects CUBIC if namespaces may select it. The tests do not depend on it.
    on "$pid" sysctl -qw net.ipv4.tcp_congestion_control=cubic 2> /dev/null || true
    on "$pid" sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
        net.mptcp.enabled=1 net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0
    on "$pid" sysctl -qw net.ipv4.tcp_no_metrics_save=1 net.mptcp.blackhole_timeout=0 2> /dev/null || true
    on "$pid" ip mptcp limits set subflows 4 add_addr_accepted 4
    on "$pid" ip link set lo up
done

# Arguments: number of the network, metric of the client's default route over it.
network() {
    on "$server" ip link add "eth$1" type veth peer name "net$1" netns "$client"
    on "$server" ip addr add "10.91.$1.1/24" dev "eth$1"
    on "$client" ip addr add "10.91.$1.2/24" dev "net$1"
    on "$server" ip -6 addr add "fd91:$1::1/64" dev "eth$1" nodad
    on "$client" ip -6 addr add "fd91:$1::2/64" dev "net$1" nodad
    on "$server" ip link set "eth$1" up
    on "$client" ip link set "net$1" up
    on "$client" ip route add default via "10.91.$1.1" dev "net$1" metric "$2"
    on "$client" ip -6 route add default via "fd91:$1::1" dev "net$1" metric "$2"
}
network 1 100
network 2 200

echo "server $server"
echo "client $client"
echo ready
read -r _ || true
