#!/bin/bash
# Two phones with identical hotspot settings: on both, the client has the same address in the same network behind the
# same gateway. Runs in a network namespace of its own, the network between the phones and a server. Prints "ROLE PID"
# for each namespace that can be joined, then "ready", and runs until its standard input ends.
set -eu
dir=$1
source "$(dirname "$0")/../support/wires.sh"

for role in server client phone0 phone1; do
    unshare --net sleep infinity &
    declare "$role=$!"
done
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
await_namespaces "$server" "$client" "$phone0" "$phone1"

ip link set lo up
on "$client" ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
wire s0 9.9.9.254 "$server" eth0 9.9.9.1 100
wire6 s0 2001:db8:9::fe "$server" eth0 2001:db8:9::1 100
for number in 0 1; do
    phone=$(eval echo "\$phone$number")
    wire "p$number" "10.$number.0.1" "$phone" rmnet0 "10.$number.0.2" 100
    wire6 "p$number" "2001:db8:1$number::1" "$phone" rmnet0 "2001:db8:1$number::2" 100
    on "$phone" ip link add ncm0 type veth peer name "usb$number" netns "$client"
    on "$phone" ip addr add 172.20.10.1/28 dev ncm0
    # The link-local address of both routers is the same, too.
    on "$phone" ip link set ncm0 address 02:00:00:00:00:01
    on "$phone" ip -6 addr add fd00:10::1/64 dev ncm0 nodad
    on "$phone" ip link set ncm0 up
    on "$client" ip addr add 172.20.10.2/28 dev "usb$number"
    on "$client" ip -6 addr add fd00:10::2/64 dev "usb$number" nodad
    on "$client" ip link set "usb$number" up
    on "$client" ip -6 route add default via fe80::ff:fe00:1 dev "usb$number" metric "10$number"
    on "$client" ip route add default via 172.20.10.1 dev "usb$number" metric "10$number"
    nsenter --target "$phone" --net bash -eu -c '
        echo 1 > /proc/sys/net/ipv4/ip_forward
        echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
        nft add table inet share
        nft "add chain inet share nat { type nat hook postrouting priority 100; }"
        nft add rule inet share nat oifname rmnet0 masquerade
        nft "add chain inet share pass { type filter hook forward priority 0; }"'
done

echo "server $server"
echo "client $client"
echo "phone0 $phone0"
echo "phone1 $phone1"
echo ready
cat > /dev/null
