#!/bin/bash
# A client with two networks, of which the first is behind a NAT, and a server. Runs in network and mount
# namespaces of its own, which are the NAT and the second network's router. `nat forget` in the role `nat`
# has the effect of a restart of the NAT: its mappings are lost, and the next packet of each connection gets
# another port. Prints "ROLE PID" for each namespace that can be joined, then "ready", and runs until its
# standard input ends.
set -eu
dir=$1
source "$(dirname "$0")/support/wires.sh"

unshare --net sleep infinity & server=$!
unshare --net sleep infinity & client=$!
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
await_namespaces "$server" "$client"

wire wan0 9.9.9.254 "$server" eth0 9.9.9.1 100
wire c0 192.168.1.1 "$client" wlan0 192.168.1.2 100
wire c1 10.70.0.1 "$client" wwan0 10.70.0.2 200
ip link set lo up
for pid in $$ $server $client; do
    on "$pid" sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
    # Neighbor entries must stay valid, because only the NAT mappings are to be lost.
    on "$pid" sysctl -qw net.ipv4.neigh.default.base_reachable_time_ms=600000 2> /dev/null || true
done
sysctl -qw net.ipv4.ip_forward=1
nft -f - <<RULES
table ip nat {
    chain out {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr 192.168.1.0/24 oifname "wan0" masquerade random
    }
}
RULES

# The kernel deletes the NAT mappings of an interface that goes down.
cat > "$dir/bin/nat" <<'NAT'
#!/bin/bash
set -eu
case $1 in
forget)
    ip link set wan0 down
    while grep -qs 192.168.1.2 /proc/net/nf_conntrack; do sleep 0.005; done
    ip link set wan0 up
    ;;
# Drops packets of unknown connections without an error to the sender.
mute)
    sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0
    nft -f - <<RULES
table ip mute {
    chain in { type filter hook input priority filter; policy accept; iifname "wan0" drop; }
    chain through { type filter hook forward priority filter; policy accept; ct state invalid drop; }
}
RULES
    ;;
esac
NAT
chmod +x "$dir/bin/nat"

echo "server $server"
echo "client $client"
echo "nat $$"
echo ready
read -r _ || true
