# Functions for the namespaces of tests and the wires between them. Scripts that run in network namespaces of their own
# include them by `source`.

# Waits until these processes have network namespaces other than this one.
await_namespaces() {
    local mine pid
    mine=$(readlink /proc/$$/ns/net)
    for pid in "$@"; do
        while [ "$(readlink "/proc/$pid/ns/net")" = "$mine" ]; do sleep 0.01; done
    done
}

# Runs a command in the namespace of a process.
on() { nsenter --target "$1" --net "${@:2}"; }

# Creates a wire. Arguments: name and address of this end, process in the namespace of the other end, its name and
# address, metric of its default route.
wire() {
    ip link add "$1" type veth peer name "$4" netns "$3"
    ip addr add "$2/24" dev "$1"
    ip link set "$1" up
    on "$3" ip addr add "$5/24" dev "$4"
    on "$3" ip link set lo up
    on "$3" ip link set "$4" up
    on "$3" ip route add default via "$2" dev "$4" metric "$6"
}

# Adds IPv6 addresses to an existing wire. The arguments are those of `wire`.
wire6() {
    ip addr add "$2/64" dev "$1" nodad
    on "$3" ip addr add "$5/64" dev "$4" nodad
    on "$3" ip -6 route add default via "$2" dev "$4" metric "$6"
}
