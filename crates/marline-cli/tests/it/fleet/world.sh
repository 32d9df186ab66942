#!/bin/bash
# Namespaces for the tests of fleets. Runs in network and mount namespaces of its own, which are the networks between
# clients with two uplinks, one of them behind a NAT, and four members of a fleet. Other processes can join them by the
# role `net`. The balancer keeps no state: a hash of the outer source address and port selects a slot, and each slot
# belongs to a member. Prints "ROLE PID" for each namespace that can be joined, then "ready", and runs until its
# standard input ends.
set -eu
dir=$1
source "$(dirname "$0")/../support/wires.sh"

pids=()
for role in client m1 m2 m3 m4; do
    unshare --net --mount sleep infinity & pids+=($!)
done
client=${pids[0]}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
await_namespaces "${pids[@]}"

wire c0 192.168.1.1 "$client" wlan0 192.168.1.2 100
wire c1 10.70.0.1 "$client" wwan0 10.70.0.2 200
# Packets that leave over the second interface use a separate routing table.
on "$client" ip rule add from 10.70.0.2 table 7
on "$client" ip route add default via 10.70.0.1 dev wwan0 table 7
for n in 1 2 3 4; do
    wire "s$n" "9.9.$n.254" "${pids[$n]}" eth0 "9.9.$n.1" 100
done
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
for filter in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > "$filter"; done

# Clients connect to 203.0.113.7, port 7777. Behind it, members listen on port 7777, and on port 7778 for connections to
# their own address.
nft -f - <<'NFT'
table ip fleet {
    map outside { type ifname : ipv4_addr; elements = { "c0" : 198.51.100.1 }; }
    chain before {
        type filter hook prerouting priority raw;
        iifname "c0" ip saddr set iifname map @outside
        ip daddr 198.51.100.0/24 ip daddr set 192.168.1.2
        ip daddr 203.0.113.7 meta l4proto { tcp, udp } th dport 7777 jump choose
        ip saddr 9.9.0.0/16 meta l4proto { tcp, udp } th sport 7777 ip saddr set 203.0.113.7
    }
    chain choose { }
}
NFT
mkdir -p "$dir/bin"
# `balance 1 2 4` sets the members of the balancer.
cat > "$dir/bin/balance" <<'BALANCE'
#!/bin/bash
set -eu
members=("$@")
elements=
for slot in 0 1 2 3 4 5 6 7; do
    elements+="${elements:+, }$slot : 9.9.${members[slot % $#]}.1"
done
nft -f - <<NFT
flush chain ip fleet choose
add rule ip fleet choose ip daddr set jhash ip saddr . th sport mod 8 seed 0x5eed map { $elements }
NFT
BALANCE
# `rebind 198.51.100.2` changes the source address of the clients' packets over wlan0.
cat > "$dir/bin/rebind" <<'REBIND'
#!/bin/bash
set -eu
nft -f - <<NFT
flush map ip fleet outside
add element ip fleet outside { "c0" : $1 }
NFT
REBIND
chmod +x "$dir/bin/balance" "$dir/bin/rebind"
PATH="$dir/bin:$PATH:/usr/sbin" balance 1 2 3 4
chmod 755 "$dir"

echo "client $client"
for n in 1 2 3 4; do echo "m$n ${pids[$n]}"; done
echo "net $$"
echo ready
cat > /dev/null
