#!/bin/bash
# Namespaces for the test of the quickstart. Runs in network and mount namespaces of its own, which are the
# internet: it routes, and contains example.org and host.example. Prints "ROLE PID" for each namespace that
# can be joined, then "ready", and runs until its standard input ends.
set -eu
dir=$1
source "$(dirname "$0")/support/wires.sh"

cat > "$dir/hosts" <<HOSTS
127.0.0.1 localhost
9.9.9.1 server.example
8.8.4.1 example.org host.example
HOSTS
# Changes to /etc are not visible outside these namespaces.
mkdir "$dir/etc"
mount -t tmpfs tmpfs "$dir/etc"
mkdir "$dir"/etc/{above,work}
mount -t overlay -o "lowerdir=/etc,upperdir=$dir/etc/above,workdir=$dir/etc/work" overlay /etc
rm -rf /etc/marline
mount --bind "$dir/hosts" /etc/hosts

unshare --net sleep infinity & server=$!
unshare --net sleep infinity & client=$!
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
await_namespaces "$server" "$client"

wire s0 9.9.9.254 "$server" eth0 9.9.9.1 100
wire c0 192.168.1.1 "$client" wlan0 192.168.1.2 100
wire c1 10.70.0.1 "$client" wwan0 10.70.0.2 200
ip link set lo up
ip addr add 8.8.4.1/32 dev lo
echo 1 > /proc/sys/net/ipv4/ip_forward

(cd "$dir/web" && exec python3 -m http.server --bind 8.8.4.1 80) > /dev/null 2>&1 &

ssh-keygen -q -t ed25519 -N '' -f "$dir/host_key"
ssh-keygen -q -t ed25519 -N '' -f "$dir/ssh/id_ed25519"
cp "$dir/ssh/id_ed25519.pub" "$dir/authorized_keys"
echo "host.example $(cut -d ' ' -f 1,2 "$dir/host_key.pub")" > "$dir/ssh/known_hosts"
chmod 700 "$dir/ssh"
# ssh uses the home directory of the password file and ignores HOME.
home=$(getent passwd "$(id -u)" | cut -d : -f 6)
mkdir -p "$home/.ssh" /run/sshd
mount --bind "$dir/ssh" "$home/.ssh"
cat > "$dir/sshd_config" <<CONFIG
ListenAddress 8.8.4.1
HostKey $dir/host_key
AuthorizedKeysFile $dir/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
CONFIG
"$(command -v sshd || echo /usr/sbin/sshd)" -D -f "$dir/sshd_config" > /dev/null 2>&1 &

for port in 80 22; do
    until (exec 3<> "/dev/tcp/8.8.4.1/$port") 2> /dev/null; do sleep 0.05; done
done
echo "server $server"
echo "client $client"
echo ready
read -r _ || true
