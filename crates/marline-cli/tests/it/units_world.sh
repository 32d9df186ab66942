#!/bin/bash
# A machine started by systemd, in namespaces of its own, with only the units of packaging/. Its files are those of
# this machine with a layer of memory above, so that changes are lost at the end.
# $1: a directory with bin/marline and units/*.service. The output of the machine is stored in said/.
# Runs as the first process of new namespaces (mount, pid, net, uts, ipc, cgroup), in a cgroup of its own.
set -eu
dir=$1
mount --make-rprivate /
machine=$dir/machine
mkdir "$machine"
mount -t tmpfs -o mode=755 tmpfs "$machine"
mkdir "$machine"/{above,work,root}
root=$machine/root
mount -t overlay -o "lowerdir=/,upperdir=$machine/above,workdir=$machine/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
    mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
    mkdir "$root"/sys/fs/cgroup/{systemd,unified}
    mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/unified"
fi
mount -t tmpfs -o mode=755,dev tmpfs "$root/dev"
number=3
for name in null - zero - full random urandom; do
    [ $name = - ] || mknod -m 666 "$root/dev/$name" c 1 $number
    number=$((number + 1))
done
mknod -m 666 "$root/dev/tty" c 5 0
mkdir "$root"/dev/{shm,pts,mqueue,hugepages,net}
mknod -m 666 "$root/dev/net/tun" c 10 200
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root"/run/{said,units,web} "$root/etc/marline" "$root/var/lib/marline"
mount --bind "$dir/said" "$root/run/said"
rm -f "$root/usr/local/bin/marline"
install -m 755 "$dir/bin/marline" "$root/usr/local/bin/marline"
echo "Hello from the machine" > "$root/run/web/index.html"

# The targets on which the units depend, and the commands that run once they are started.
for target in sysinit basic shutdown network-online multi-user; do
    printf '[Unit]\nDefaultDependencies=no\n' > "$root/run/units/$target.target"
done
cp "$dir"/units/*.service "$root/run/units/"
ours="marline-server.service marline-serve.service marline-client.service"
cat > "$root/run/units/look.service" <<UNIT
[Unit]
DefaultDependencies=no
Wants=$ours
After=$ours
[Service]
Type=oneshot
ExecStart=/bin/bash /run/look
StandardOutput=file:/run/said/look
StandardError=file:/run/said/look
UNIT
mkdir -p "$root"/run/person{,-units/marline-client.service.d}
cp "$dir"/units/user/marline-client.service "$root/run/person-units/"
for target in basic shutdown default; do
    printf '[Unit]\nDefaultDependencies=no\n' > "$root/run/person-units/$target.target"
done
# This machine has no default route.
printf '[Service]\nExecStart=\nExecStart=%s\n' "marline client --path 127.0.0.1" \
    > "$root/run/person-units/marline-client.service.d/path.conf"
cat > "$root/run/units/person.service" <<'UNIT'
[Unit]
DefaultDependencies=no
[Service]
Type=notify
User=nobody
Delegate=yes
Environment=HOME=/run/person XDG_RUNTIME_DIR=/run/person XDG_CONFIG_HOME=/run/person/.config
Environment=SYSTEMD_UNIT_PATH=/run/person-units
ExecStart=/lib/systemd/systemd --user --unit=marline-client.service
UNIT
cat > "$root/run/look" <<'LOOK'
units="marline-server marline-serve marline-client"
for port in 8080 1080 8443; do
    for try in {1..100}; do
        (exec 3<> /dev/tcp/127.0.0.1/$port) 2> /dev/null && break
        sleep 0.1
    done
done
echo "socks5: $(curl -sS --max-time 20 --socks5-hostname 127.0.0.1:1080 http://127.0.0.1:8080/)"
echo "serve: $(curl -sS --max-time 20 http://127.0.0.1:8443/)"
for unit in $units; do
    pid=$(systemctl show --value -p MainPID $unit)
    echo "$unit: $(systemctl is-active $unit)"
    grep -E '^(Uid|Cap(Prm|Eff|Inh|Amb)|NoNewPrivs|Seccomp):' /proc/$pid/status |
        while read -r key value rest; do echo "$unit: $key $value"; done
done
for unit in $units; do
    pid=$(systemctl show --value -p MainPID $unit)
    systemctl reload $unit
    [ "$pid" = "$(systemctl show --value -p MainPID $unit)" ] && echo "$unit: reloaded, $(systemctl is-active $unit)"
done
echo "socks5 again: $(curl -sS --max-time 20 --socks5-hostname 127.0.0.1:1080 http://127.0.0.1:8080/)"
# An upgrade with an open stream, whose later data goes through the old process.
python3 /run/held > /run/said/held &
for try in {1..100}; do grep -q open /run/said/held && break; sleep 0.1; done
pid=$(systemctl show --value -p MainPID marline-server)
echo "upgrade: $(marline upgrade --control /run/marline-server | grep -c 'has taken over')"
for try in {1..100}; do
    [ "$(systemctl show --value -p MainPID marline-server)" != $pid ] && break
    sleep 0.1
done
now=$(systemctl show --value -p MainPID marline-server)
[ $now != $pid ] && [ -d /proc/$now ] && [ -d /proc/$pid ] &&
    echo "marline-server: upgraded, $(systemctl is-active marline-server), $(grep -c . /proc/$pid/cgroup)"
touch /run/go
for try in {1..100}; do [ -d /proc/$pid ] || break; sleep 0.1; done
echo "held: $(tail -n 1 /run/said/held)"
[ -d /proc/$pid ] || echo "marline-server: the old process has ended, $(systemctl is-active marline-server)"
grep -E '^(NoNewPrivs|Seccomp):' /proc/$now/status |
    while read -r key value rest; do echo "marline-server now: $key $value"; done
systemctl reload marline-server
[ "$now" = "$(systemctl show --value -p MainPID marline-server)" ] &&
    echo "marline-server: reloaded again, $(systemctl is-active marline-server)"
# A reload of the unit that is an upgrade (docs/operate/upgrade.md).
mkdir -p /run/units/marline-server.service.d
printf '[Service]\nExecReload=\nExecReload=/usr/local/bin/marline upgrade --control %%t/marline-server\n' \
    > /run/units/marline-server.service.d/upgrade.conf
systemctl daemon-reload
systemctl reload marline-server
for try in {1..100}; do
    [ "$(systemctl show --value -p MainPID marline-server)" != $now ] && break
    sleep 0.1
done
[ "$now" != "$(systemctl show --value -p MainPID marline-server)" ] &&
    echo "marline-server: upgraded by reload, $(systemctl is-active marline-server)"
echo "socks5 after that: $(curl -sS --max-time 20 --socks5-hostname 127.0.0.1:1080 http://127.0.0.1:8080/)"
# systemd restarts each of them without a limit.
for unit in $units marline-up; do
    echo "$unit: limit $(systemctl show --value -p StartLimitIntervalUSec $unit), restarts after $(systemctl show --value -p RestartUSec $unit)"
done
for unit in marline-client marline-up; do
    echo "$unit: may take $(systemctl show --value -p TimeoutStartUSec $unit)"
done
rules() { ip rule show | grep -c "proto 109"; }
# The unit is started once traffic goes through the tunnel.
timeout 60 systemctl start marline-up
echo "marline-up: $(systemctl is-active marline-up), rules: $(rules)"
pid=$(systemctl show --value -p MainPID marline-up)
grep -E '^(Uid|Cap(Prm|Eff|Inh|Amb)|NoNewPrivs|Seccomp):' /proc/$pid/status |
    while read -r key value rest; do echo "marline-up: $key $value"; done
# Kills all its processes together. systemd starts it again.
systemctl kill -s KILL marline-up
for try in {1..300}; do
    [ "$(systemctl show --value -p MainPID marline-up)" != $pid ] && systemctl is-active -q marline-up && break
    sleep 0.1
done
echo "marline-up again: $(systemctl is-active marline-up), rules: $(rules)"
marline down
for try in {1..100}; do [ "$(systemctl is-active marline-up)" = inactive ] && break; sleep 0.1; done
echo "marline-up down: $(systemctl is-active marline-up), rules: $(rules)"
# Lockdown as at boot: only `marline down` ends it, not a stop of the units.
echo 'lockdown = true' >> /etc/marline/client.toml
cp /etc/resolv.conf /run/resolv.conf.before
timeout 60 systemctl start marline-lockdown
echo "lockdown: $(systemctl is-active marline-lockdown), $(ip rule show | grep -c 'from all unreachable proto 109')"
timeout 60 systemctl start marline-up
echo "marline-up locked: $(systemctl is-active marline-up), $(grep -c '^nameserver 198.18.0.1' /etc/resolv.conf)"
pid=$(systemctl show --value -p MainPID marline-up)
systemctl kill -s KILL marline-up
for try in {1..200}; do
    [ "$(systemctl show --value -p MainPID marline-up)" != $pid ] && systemctl is-active -q marline-up && break
    sleep 0.1
done
echo "marline-up locked again: $(systemctl is-active marline-up)"
systemctl stop marline-up marline-lockdown
echo "stopped: $(systemctl is-active marline-up), $(ip rule show | grep -c 'from all unreachable proto 109')"
marline down
echo "open: $(rules), $(cmp /etc/resolv.conf /run/resolv.conf.before && echo restored)"
# A hanging process sends no watchdog messages. (It would handle the default signal SIGABRT only once it continues.)
mkdir -p /run/units/marline-client.service.d
printf '[Service]\nWatchdogSec=1s\nWatchdogSignal=SIGKILL\n' > /run/units/marline-client.service.d/watchdog.conf
systemctl daemon-reload
timeout 30 systemctl restart marline-client
pid=$(systemctl show --value -p MainPID marline-client)
sleep 3
[ "$pid" = "$(systemctl show --value -p MainPID marline-client)" ] && echo "watchdog: left alone"
kill -s STOP "$pid"
for try in {1..300}; do
    [ "$(systemctl show --value -p MainPID marline-client)" != "$pid" ] && systemctl is-active -q marline-client && break
    sleep 0.1
done
echo "watchdog: $(systemctl is-active marline-client) again, $(systemctl show --value -p NRestarts marline-client)"
systemctl stop marline-client
# The same for a user, with the service manager of that user.
timeout 30 systemctl start person
for try in {1..100}; do (exec 3<> /dev/tcp/127.0.0.1/1080) 2> /dev/null && break; sleep 0.1; done
echo "person: $(curl -sS --max-time 20 --socks5-hostname 127.0.0.1:1080 http://127.0.0.1:8080/)"
systemctl kill -s KILL person
# With cgroup v1, which this machine may have, systemd in a container does not wait for processes that are not its
# children. The upgraded server is not a child, and still has the connections of the client that was killed above.
systemctl restart marline-server
systemctl stop marline-serve marline-server
for unit in $units; do echo "$unit: ended with $(systemctl show --value -p Result $unit)"; done
echo "that is all"
LOOK
cat > "$root/run/held" <<'HELD'
import os, socket, time
stream = socket.create_connection(("127.0.0.1", 1080))
stream.settimeout(30)
stream.sendall(bytes([5, 1, 0]))
stream.recv(2)
stream.sendall(bytes([5, 1, 0, 1, 127, 0, 0, 1]) + (8080).to_bytes(2, "big"))
print("open" if stream.recv(10)[1] == 0 else "refused", flush=True)
while not os.path.exists("/run/go"):
    time.sleep(0.05)
stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
said = b""
while part := stream.recv(4096):
    said += part
print(said.decode().strip().splitlines()[-1], flush=True)
HELD
ip link set lo up
mkdir "$root/old"
cd "$root"
pivot_root . old
exec chroot . /bin/bash -euc '
umount -l /old
rmdir /old
# As at the boot of a machine.
mount --make-rshared /
cd /
# Setup as in docs/operate/deploy.md and the comments of the units.
marline server --init --config /var/lib/marline/marline.toml --listen 127.0.0.1:7777 \
    --public 127.0.0.1:7777 --allow 127.0.0.0/8 --invite-out /etc/marline/invite 2> /dev/null
mkdir -p /run/person/.config/marline
cp /etc/marline/invite /run/person/.config/marline/
chown -R nobody /run/person
echo "path = [\"127.0.0.1\"]
socks5 = [\"127.0.0.1:1080\"]
[up]
bypass = [\"192.0.2.0/24\"]" > /etc/marline/client.toml
echo "listen = [\"127.0.0.1:8443\"]
to = \"127.0.0.1:8080\"" > /etc/marline/serve.toml
(cd /run/web && exec python3 -m http.server --bind 127.0.0.1 8080) > /run/said/web 2>&1 &
export SYSTEMD_UNIT_PATH=/run/units container=lab
exec /lib/systemd/systemd --system --unit=look.service --log-target=null'
