#!/bin/bash
# What somebody does with the packages on a Debian without Rust, and with the container. Runs as the first process of
# new namespaces (mount, pid, net), so that nothing of it stays.
# $1: a folder with debian/ (a fresh root file system), container/ (the container's), marline.deb and marline.rpm.
# Pictures of the newcomer's walk are left in $1/walk.
# Prints "OK what" for each thing that was seen; ends at the first that was not.
set -euo pipefail
here=$1
debian=$here/debian
container=$here/container
ok() { echo "OK $*"; }
# On standard output: the caller repeats these lines at the end of its log.
fail() { echo "FAILED $*"; exit 1; }
trap 'echo "FAILED line $LINENO: $BASH_COMMAND"' ERR
since() { echo "$(($(date +%s) - $1)) s"; }
# $1: what; $2: when it began; $3: when it ended; $4: the time that it may take, all in seconds.
within() { [ $(($3 - $2)) -lt "$4" ] || fail "$1 took $(($3 - $2)) s, $4 are allowed"; }
# Waits for a state, not for a time.
until_true() { for _ in {1..300}; do "$@" 2> /dev/null && return; sleep 0.1; done; fail "never: $*"; }
says() { grep -q "$1" "$2"; }

ip link set lo up
mount --make-rprivate /
for root in "$debian" "$container"; do
    mkdir -p "$root"/{proc,dev}
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
done
on_debian() { chroot "$debian" "$@"; }
# As a container's engine starts it: as nobody, without a privilege.
in_container() { chroot --userspec=65534:65534 "$container" "$@"; }

mkdir "$here/web"
echo "Hello from the other side" > "$here/web/index.html"
(cd "$here/web" && exec python3 -m http.server --bind 127.0.0.1 8000) > /dev/null 2>&1 &

# --- The newcomer's walk: what the first screen of the README says, on a Debian without Rust, in less than five minutes.
on_debian sh -c 'command -v cargo rustc cc' && fail "the root file system is not fresh"
head -n 60 README.md > "$here/first-screen"
for words in 'apt install' './target/dist/marline_' 'demo --dashboard' 'http://127.0.0.1:9101/'; do
    says "$words" "$here/first-screen" || fail "the first screen of the README does not say: $words"
done
begun=$(date +%s)
cp "$here/marline.deb" "$debian/tmp/"
on_debian apt install -y /tmp/marline.deb > "$here/apt.log" 2>&1 || { cat "$here/apt.log"; fail "apt install: $(tail -n 1 "$here/apt.log")"; }
ok "apt install after $(since "$begun"): $(on_debian marline --version)"
# The demo takes half a minute, and a minute with a dashboard, of which the browser watches the first half. The rest goes
# on beside them.
(timeout 60 chroot "$debian" marline demo > "$here/demo.log" 2>&1 && date +%s > "$here/demo.end") & demo=$!
timeout 120 chroot "$debian" marline demo --dashboard > "$here/dashboard.log" 2>&1 &
until_true says "live: http://127.0.0.1:9101/" "$here/dashboard.log"
(python3 packaging/check/watch_handover.py chromium http://127.0.0.1:9101/ "$here/walk" > "$here/walk.log" 2>&1 &&
    date +%s > "$here/walk.end") & walk=$!

# --- Server and client, one line each beside the line that makes the invite.
services=$(date +%s)
on_debian marline server --init --config /var/lib/marline/marline.toml --listen 127.0.0.1:7777 \
    --allow 127.0.0.0/8 --invite-out /etc/marline/invite 2> /dev/null
on_debian marline server --config /var/lib/marline/marline.toml > "$here/server.log" 2>&1 &
on_debian marline client --path 127.0.0.1 > "$here/client.log" 2>&1 &
until_true says "socks5 listening" "$here/client.log"
fetched=$(curl -sS --max-time 60 --socks5-hostname 127.0.0.1:1080 http://127.0.0.1:8000/)
[ "$fetched" = "Hello from the other side" ] || fail "curl through both: $fetched"
within "server, client and a curl through them" "$services" "$(date +%s)" 120
ok "server, client and a curl through them after $(since "$services")"

# --- The container's root file system: the program, alone, as nobody. It resolves names by /etc/hosts there.
file "$container/usr/bin/marline" | grep -q 'static' || fail "the container's program is not static"
[ ! -e "$container/bin/sh" ] || fail "there is a shell in the container"
mkdir -p "$container/etc"
echo "127.0.0.1 origin.test" > "$container/etc/hosts"
# Modules of the machine's C library, which a static program must not load: it asks /etc/hosts all the same.
echo "hosts: mymachines resolve [!UNAVAIL=return] myhostname" > "$container/etc/nsswitch.conf"
in_container /usr/bin/marline --version > /dev/null
in_container /usr/bin/marline server --init --config /var/lib/marline/marline.toml --listen 127.0.0.1:7778 \
    --allow 127.0.0.0/8 --invite-out /var/lib/marline/invite 2> /dev/null
read -ra command <<< "$(sed -n 's/^ENTRYPOINT //p; s/^CMD //p' "$here/Containerfile" | tr -d '[],"' | tr '\n' ' ')"
in_container "${command[@]}" > "$here/container.log" 2>&1 &
cp -p "$container/var/lib/marline/invite" "$debian/tmp/container-invite"
on_debian marline client --invite-file /tmp/container-invite --path 127.0.0.1 --socks5 127.0.0.1:1081 \
    --control /run/second.sock > "$here/second.log" 2>&1 &
until_true says "socks5 listening" "$here/second.log"
fetched=$(curl -sS --max-time 60 --socks5-hostname 127.0.0.1:1081 http://origin.test:8000/)
[ "$fetched" = "Hello from the other side" ] || fail "curl through the container: $fetched"
ok "the container serves as nobody: ${command[*]}"

# --- What else is in the package.
on_debian bash -euc '
    source /usr/share/bash-completion/completions/marline
    COMP_WORDS=(marline serv) COMP_CWORD=1 COMPREPLY=()
    _marline marline serv marline
    [ "${COMPREPLY[*]}" = "server serve" ] || { echo "completed to ${COMPREPLY[*]}"; exit 1; }' || fail "completions"
ok "bash completes"
for page in marline marline-server-credential-add; do
    gzip -dc "$debian/usr/share/man/man1/$page.1.gz" | grep -q '^\.TH' || fail "no page $page"
done
ok "manual pages: $(find "$debian/usr/share/man/man1" -name 'marline*' | wc -l)"
for unit in packaging/*.service; do
    cmp "$unit" "$debian/usr/lib/systemd/system/${unit##*/}"
done
cmp packaging/user/marline-client.service "$debian/usr/lib/systemd/user/marline-client.service"
ok "the units are those that the tests start"

# --- The other package has the same files.
rpm -qpl "$here/marline.rpm" 2> /dev/null | sed 's#zsh/site-functions#zsh/vendor-completions#' | sort > "$here/rpm.files"
dpkg-deb -c "$here/marline.deb" | awk '$1 ~ /^-/ { print substr($6, 2) }' | grep -v /copyright | sort > "$here/deb.files"
diff "$here/deb.files" "$here/rpm.files" || fail "deb and rpm differ"
mkdir -p "$here/redhat"
rpm --root "$here/redhat" --nodeps --noscripts --ignorearch -i "$here/marline.rpm" 2> "$here/rpm.log" ||
    { cat "$here/rpm.log"; fail "rpm -i"; }
cmp "$here/redhat/usr/bin/marline" "$debian/usr/bin/marline"
ok "the rpm installs the same $(wc -l < "$here/rpm.files") files"

wait $walk || { cat "$here/walk.log"; fail "the handover in the dashboard: $(head -n 1 "$here/walk.log")"; }
sed 's/^/    /' "$here/walk.log"
within "the newcomer's walk" "$begun" "$(cat "$here/walk.end")" 300
ok "the newcomer's walk: the handover was seen in a browser $(($(cat "$here/walk.end") - begun)) s after the installation began"
wait $demo || { cat "$here/demo.log"; fail "marline demo within 60 s: $(tail -n 1 "$here/demo.log")"; }
tail -5 "$here/demo.log"
within "apt install and marline demo" "$begun" "$(cat "$here/demo.end")" 60
ok "marline demo $(($(cat "$here/demo.end") - begun)) s after the installation began"

on_debian dpkg -P marline > /dev/null 2>&1
rest=$(find "$debian"/usr "$debian"/etc -name '*marline*' -not -path '*/etc/marline*' -not -path '*/share/doc*')
[ -z "$rest" ] || fail "left behind: $rest"
[ ! -e "$debian/etc/marline/client.toml" ] || fail "client.toml was left behind"
ok "dpkg -P leaves what the administrator made: $(ls "$debian/etc/marline" 2> /dev/null | tr '\n' ' ')"
echo "that is all"
