#!/bin/bash
# A machine whose WiFi and LTE are managed by NetworkManager with DHCP, in front of Marline's server, and what happens
# to it while `marline up` runs. Runs as the first process of new namespaces (mount, pid, net), in an empty directory
# with traffic.py. Prints what happens; traffic.py reports in `traffic`.
set -eu
here=$PWD
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/dbus /run/marline /run/netns "$here"/{etc,nm}
cp -a /etc/. etc/
rm -rf etc/resolv.conf etc/NetworkManager/system-connections
mkdir -p etc/NetworkManager/system-connections /var/lib/NetworkManager
touch etc/resolv.conf
mount --bind etc /etc
mount --bind nm /var/lib/NetworkManager
ip netns add far
far() { ip netns exec far "$@"; }
ip link set lo up
far ip link set lo up
ip link add wlan0 address 02:00:00:00:01:02 type veth peer name access netns far
ip link add wwan0 address 02:00:00:00:02:02 type veth peer name tower netns far
for address in "10.1.0.1/24 dev access" "10.3.0.1/24 dev access" "10.2.0.1/24 dev tower" \
    "9.9.9.1/32 dev lo" "8.8.4.1/32 dev lo"; do
    # shellcheck disable=SC2086
    far ip addr add $address
done
far ip link set access up
far ip link set tower up

# dhcp INTERFACE NETWORK: serves addresses of this network.
dhcp() {
    if [ -e "$1.pid" ]; then
        kill "$(cat "$1.pid")"
        wait "$(cat "$1.pid")" || true
    fi
    rm -f "$1.leases"
    ip netns exec far dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --port=0 \
        --interface="$1" --bind-interfaces --dhcp-authoritative --dhcp-leasefile="$here/$1.leases" \
        --dhcp-range="$2.100,$2.150,255.255.255.0,2m" --dhcp-option="3,$2.1" --dhcp-option="6,$2.1" \
        > "$1.log" 2>&1 &
    echo $! > "$1.pid"
}
dhcp access 10.1.0
dhcp tower 10.2.0
far marline server --init --config marline.toml --listen 0.0.0.0:7777 --public 9.9.9.1:7777 > invite 2> /dev/null
chmod 600 invite
far marline server --config marline.toml --allow 8.8.4.0/24 > server.log 2>&1 &
far python3 traffic.py server > echo.log 2>&1 &

# Without write access to /sys NetworkManager waits for no udev.
mount -o remount,ro,bind /sys
cat > /etc/NetworkManager/NetworkManager.conf <<CONF
[main]
plugins=keyfile
dhcp=internal
rc-manager=file
no-auto-default=*
[device]
match-device=type:veth
managed=1
CONF
for line in "wifi 02:00:00:00:01:02 100" "lte 02:00:00:00:02:02 200"; do
    read -r name mac metric <<< "$line"
    file=/etc/NetworkManager/system-connections/$name.nmconnection
    printf '[connection]\nid=%s\ntype=ethernet\n[ethernet]\nmac-address=%s\n[ipv4]\nmethod=auto\nroute-metric=%s\n' \
        "$name" "$mac" "$metric" > "$file"
    printf '[ipv6]\nmethod=disabled\n' >> "$file"
    chmod 600 "$file"
done
dbus-daemon --system --nofork --nopidfile 2> dbus.log &
manager() {
    NetworkManager --no-daemon >> manager.log 2>&1 &
    manager=$!
}
# wait_for COMMAND..: until it succeeds.
wait_for() {
    for _ in $(seq 200); do
        ! "$@" > /dev/null 2>&1 || return 0
        sleep 0.1
    done
    echo "timeout: $*"
    cat up.log
    exit 1
}
has() { ip -4 addr show "$1" | grep -q "inet $2"; }
manager
wait_for has wlan0 10.1.0
wait_for has wwan0 10.2.0
# With the kill switch no new connection passes the tunnel in the moment before the interface is restored.
marline up --kill-switch --invite-file invite > up.log 2>&1 &
wait_for grep -q "goes through" up.log
python3 traffic.py client > traffic &
traffic=$!
sleep 3

echo "another access point"
dhcp access 10.3.0
nmcli -w 20 connection up wifi > /dev/null
wait_for has wlan0 10.3.0
sleep 3
echo "WiFi's interface renamed, as udev does"
ip link set wlan0 down
ip link set wlan0 name wlp3s0
ip link set wlp3s0 up
wait_for has wlp3s0 10.3.0
sleep 3
echo "LTE's interface renamed while up"
ip link set wwan0 name wwp0s1
sleep 3
echo "WiFi disconnected"
nmcli -w 20 device disconnect wlp3s0 > /dev/null
sleep 3
nmcli -w 20 device connect wlp3s0 > /dev/null
wait_for has wlp3s0 10.3.0
sleep 3
echo "the address changed in place"
nmcli connection modify wifi ipv4.method manual ipv4.addresses 10.3.0.77/24 ipv4.gateway 10.3.0.1
nmcli -w 20 device reapply wlp3s0 > /dev/null
wait_for has wlp3s0 10.3.0.77
sleep 3
echo "NetworkManager restarted"
kill "$manager"
wait "$manager" || true
manager
wait_for nmcli general
sleep 3
echo "networking off and on, as when the machine sleeps"
touch outage
nmcli networking off
sleep 4
nmcli networking on
wait_for has wlp3s0 10.3.0.77
wait_for has wwp0s1 10.2.0
sleep 3
rm outage
sleep 5
touch end
wait "$traffic" || true
cat up.log
