# Functions of the worlds that tests run in: namespaces, and wires between them. For scripts that run in network
# namespaces of their own, by `source`.

# Waits until these processes have network namespaces that are not this one.
await_namespaces() {
    local mine pid
    mine=$(readlink /proc/$$/ns/net)
    for pid in "$@"; do
        while [ "$(readlink "/proc/$pid/ns/net")" = "$mine" ]; do sleep 0.01; done
    done
}

# Runs a command in the namespace of a process.
on() { nsenter --target "$1" --net "${@:2}"; }

# name of our end, our address, whose the other end is, its name, its address, metric of its default route
wire() {
    ip link add "$1" type veth peer name "$4" netns "$3"
    ip addr add "$2/24" dev "$1"
    ip link set "$1" up
    on "$3" ip addr add "$5/24" dev "$4"
    on "$3" ip link set lo up
    on "$3" ip link set "$4" up
    on "$3" ip route add default via "$2" dev "$4" metric "$6"
}

# The same addresses' places for IPv6, on a wire that there is.
wire6() {
    ip addr add "$2/64" dev "$1" nodad
    on "$3" ip addr add "$5/64" dev "$4" nodad
    on "$3" ip -6 route add default via "$2" dev "$4" metric "$6"
}
