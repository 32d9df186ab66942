#!/bin/bash
# A client with two interfaces, `eth0` and `wlan0`, in one network behind one router: both have the same gateway. Runs
# in network namespaces of its own, which are the router and the switch in front of it. Other processes can join them by
# the role `net`. Prints "ROLE PID" for each namespace that can be joined, then "ready", and runs until its standard
# input ends.
set -eu
dir=$1
source "$(dirname "$0")/../support/wires.sh"

unshare --net sleep infinity & server=$!
unshare --net sleep infinity & client=$!
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
await_namespaces "$server" "$client"

ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
wire s0 9.9.9.254 "$server" eth0 9.9.9.1 100
on "$client" ip link set lo up
ip link add lan type bridge
ip addr add 192.168.1.1/24 dev lan
ip link set lan up
metric=100
for interface in eth0 wlan0; do
    ip link add "p-$interface" type veth peer name "$interface" netns "$client"
    ip link set "p-$interface" master lan
    ip link set "p-$interface" up
    on "$client" ip addr add "192.168.1.$metric/24" dev "$interface"
    on "$client" ip link set "$interface" up
    on "$client" ip route add default via 192.168.1.1 dev "$interface" metric "$metric"
    metric=$((metric + 1))
done

echo "server $server"
echo "client $client"
echo "net $$"
echo ready
cat > /dev/null
