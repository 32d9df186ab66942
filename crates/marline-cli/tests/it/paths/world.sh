#!/bin/bash
# Namespaces for the tests of common path configurations. Runs in network and mount namespaces of its own, which are the
# networks between a client with two uplinks and a server. Processes in the role `net` can filter packets and set the
# names of the DNS zone. Prints "ROLE PID" for each namespace that can be joined, then "ready", and runs until its
# standard input ends.
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
wire c1 10.70.0.1 "$client" wwan0 10.70.0.2 200
wire6 s0 2001:db8:9::fe "$server" eth0 2001:db8:9::1 100
wire6 c0 2001:db8:1::1 "$client" wlan0 2001:db8:1::2 100
wire6 c1 2001:db8:70::1 "$client" wwan0 2001:db8:70::2 200
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
nft add table inet way
for hook in forward input output; do
    nft "add chain inet way $hook { type filter hook $hook priority 0; }"
done

mkdir -p "$dir/bin"
# `dead c0` drops all packets of this interface to the client, and `alive` removes all such rules.
cat > "$dir/bin/dead" <<'DEAD'
#!/bin/bash
set -eu
for chain in forward input; do nft add rule inet way $chain iifname "$1" drop; done
for chain in forward output; do nft add rule inet way $chain oifname "$1" drop; done
DEAD
cat > "$dir/bin/alive" <<'ALIVE'
#!/bin/bash
set -eu
for chain in forward input output; do nft flush chain inet way $chain; done
ALIVE
chmod +x "$dir/bin/dead" "$dir/bin/alive"

# The only resolver, reachable over every working network.
: > "$dir/zone"
python3 -u "$here/resolver.py" 9.9.9.254 "$dir/zone" > "$dir/resolver.log" 2>&1 &
until grep -q ready "$dir/resolver.log"; do
    kill -0 $! || { cat "$dir/resolver.log" >&2; exit 1; }
    sleep 0.05
done
echo 'nameserver 9.9.9.254' > "$dir/resolv.conf"
mount --bind "$dir/resolv.conf" /etc/resolv.conf

echo "server $server"
echo "client $client"
echo "net $$"
echo ready
cat > /dev/null
