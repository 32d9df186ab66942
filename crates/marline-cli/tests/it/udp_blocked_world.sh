#!/bin/bash
# Namespaces for the tests of networks without UDP. Runs in network and mount namespaces of its own, which are the
# networks between a client with two uplinks and a server. Processes in the role `net` can filter packets. Prints
# "ROLE PID" for each namespace that can be joined, then "ready", and runs until its standard input ends.
set -eu
dir=$1
source "$(dirname "$0")/support/wires.sh"

unshare --net sleep infinity & server=$!
unshare --net sleep infinity & client=$!
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
await_namespaces "$server" "$client"

wire s0 9.9.9.254 "$server" eth0 9.9.9.1 100
wire c0 192.168.1.1 "$client" wlan0 192.168.1.2 100
wire c1 10.70.0.1 "$client" wwan0 10.70.0.2 200
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
nft add table ip way
nft 'add chain ip way pass { type filter hook forward priority 0; }'

mkdir -p "$dir/bin" "$dir/web"
# Sets the rule for UDP on the client's interfaces: `udp drop c0`, `udp reject c0`, `udp pass`.
cat > "$dir/bin/udp" <<'UDP'
#!/bin/bash
set -eu
nft flush chain ip way pass
[ "$1" = pass ] && exit
for way in "${@:2}"; do
    nft add rule ip way pass iifname "$way" meta l4proto udp counter "$1"
    nft add rule ip way pass oifname "$way" meta l4proto udp counter "$1"
done
UDP
chmod +x "$dir/bin/udp"
chmod 755 "$dir"

echo "server $server"
echo "client $client"
echo "net $$"
echo ready
cat > /dev/null
