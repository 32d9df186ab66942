# Prints: Gbit/s without a tunnel, through it, and through it in the other direction; microseconds until connected,
# without and with it.
# $1: the program. Runs in its own directory.
program=$1
near=up-near-$$ far=up-far-$$
ip netns add $near
ip netns add $far
running=()
end() {
    kill "${running[@]}" 2> /dev/null || true
    wait "${running[@]}" 2> /dev/null || true
    ip netns del $near
    ip netns del $far
}
trap end EXIT
ip link add eth0 netns $near type veth peer name eth0 netns $far
for place in "$near eth0 10.9.0.2" "$far eth0 10.9.0.1"; do
    read -r name device address <<< "$place"
    ip -n $name addr add $address/24 dev $device
    ip -n $name link set $device up
    ip -n $name link set lo up
done
ip -n $far addr add 203.0.113.7/32 dev lo
ip -n $near route add default via 10.9.0.1
start() { # Arguments: name of the namespace, expected text in the output, command.
    : > said-$1
    ip netns exec $1 "${@:3}" > said-$1 2>&1 &
    running+=($!)
    for _ in {1..200}; do
        if [[ $(< said-$1) == *"$2"* ]]; then return; fi
        sleep 0.05
    done
    cat said-$1 >&2
    return 1
}
umask 077
rm -f server.* invite
ip netns exec $far "$program" server --init --config server.toml --listen 10.9.0.1:7777 \
    --public 10.9.0.1:7777 > invite 2> /dev/null
start $far "listening on" "$program" server --config server.toml --allow 203.0.113.0/24
start $far "listening" iperf3 --server --forceflush
# (Its backlog holds all connections; those that do not fit would be retried a second later.)
start $far "accepts" python3 -u -c '
import socket
listener = socket.create_server(("203.0.113.7", 8099), backlog=512)
print("accepts")
while True:
    listener.accept()[0].close()'
rate() {
    ip netns exec $near iperf3 --client 203.0.113.7 --time 4 --json "$@" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 1e9)'
}
connect() {
    ip netns exec $near python3 -c '
import socket, time
took = []
for _ in range(200):
    begun = time.perf_counter()
    socket.create_connection(("203.0.113.7", 8099)).close()
    took.append(time.perf_counter() - begun)
print(sorted(took)[100] * 1e6)'
}
rate
direct=$(connect)
start $near "goes through" "$program" up --invite-file invite
rate
rate --reverse
echo $direct
connect
