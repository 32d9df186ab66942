//! Tests of a new user's first hour: storing an invite once, commands without root, paths that do not exist yet,
//! restored terminals, and no silent use of mobile data. Needs root, for the hosts.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it first_hour:: -- --nocapture
//! ```

use std::time::{Duration, Instant};

use super::run::{TARGET_V4, World, targets};
use super::support;
use super::support::two_uplinks::{PATIENCE, hear};
use marline_lab::scenario::Side;

/// Runs the following command with a layer of its own above `/etc`, in which user 1000 has this directory as home.
const OWN_ETC: &str = r#"
mkdir -p etc
exec unshare --mount bash -euc '
    mount -t tmpfs tmpfs etc
    mkdir etc/above etc/work
    mount -t overlay -o lowerdir=/etc,upperdir=etc/above,workdir=etc/work overlay /etc
    grep -v "^[^:]*:[^:]*:1000:" /etc/passwd > etc/passwd || true
    echo "me:x:1000:1000::$PWD:/bin/sh" >> etc/passwd
    cp etc/passwd /etc/passwd
    rm -rf /etc/marline
    eval "$1"' _ "$inner"
"#;

/// Runs this as root of the client's host. Returns its output with any errors.
fn as_root(world: &World, inner: &str) -> String {
    let mut command = world.hosts.command(OWN_ETC);
    command.env("inner", format!("exec 2>&1\n{inner}"));
    command.env_remove("SUDO_UID").stdout(std::process::Stdio::piped());
    let child = world.hosts.net.spawn(Side::Client, &mut command).expect("spawn");
    support::texts(&child.wait_with_output().expect("output")).0
}

/// Returns both outputs of a command, which must succeed or fail as given.
fn seen(world: &World, text: &str, ok: bool) -> String {
    let output = world.output(text);
    let (out, err) = support::texts(&output);
    assert_eq!(output.status.success(), ok, "{text}: {}\n{out}\n{err}", output.status);
    out + &err
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

const WIFI: &str = "--path wifi";

#[test]
fn an_invite_is_stored_once_and_every_command_of_its_user_finds_it() {
    let _others = support::among_others();
    let Some(mut world) = World::set("join", &["curl"]) else { return };
    // Without an invite, each command prints what to type.
    for command in ["client", "run -- true", "connect a.example 1", "doctor --path wifi"] {
        let said = seen(&world, &format!("marline {command}"), false);
        assert!(said.contains("marline join"), "{command}: {said}");
    }
    let said = seen(&world, "marline join < invite", true);
    let word = std::fs::read_to_string(world.dir().join("invite")).expect("an invite");
    assert!(said.contains(".config/marline/invite") && said.contains("10.0.1.1:7777"), "{said}");
    assert!(said.contains("sudo marline up") && said.lines().count() <= 3, "{said}");
    assert!(!said.contains(&word.trim()[20..60]), "{said}");
    assert_eq!(
        seen(&world, "stat -c %a .config/marline .config/marline/invite", true),
        "700\n600\n"
    );
    assert!(seen(&world, "marline join \"$(cat invite)\"", true).contains("already"));

    // Another invite is not stored by accident.
    world.hosts.shell(
        Side::Server,
        "umask 077; marline server --config marline.toml credential add second > second 2> /dev/null
         chown 1000 second",
    );
    let said = seen(&world, "marline join --file second", false);
    assert!(said.contains("--replace") && !said.contains("marline1"), "{said}");
    assert!(seen(&world, "head -c 60 second | marline join -", false).contains("cut short"));

    // All commands find the invite.
    let url = format!("http://{TARGET_V4}:{}/1000", targets::HTTP);
    seen(&world, &format!("marline doctor {WIFI}"), true);
    let fetch =
        format!("marline run {WIFI} --dns {TARGET_V4} -- curl -sS --noproxy '' --fail {url}");
    assert!(seen(&world, &fetch, true).len() >= 1_000);
    let ask = "printf 'GET /7 HTTP/1.0\\r\\n\\r\\n'";
    let connect = format!("{ask} | marline connect {WIFI} {TARGET_V4} {}", targets::HTTP);
    let said = seen(&world, &connect, true);
    assert!(said.contains("200") && !said.contains("WARN"), "{said}");

    // A running client uses another invite after a reload.
    let client = format!("./as-user marline client {WIFI} --socks5 127.0.0.1:1080");
    let lines = world.hosts.program(Side::Client, &client);
    hear(&lines, "socks5 listening");
    assert!(seen(&world, "marline join --replace < second", true).contains("replaced"));
    world.hosts.shell(Side::Client, "pkill -HUP --ns $$ --nslist net -f '^marline client'");
    hear(&lines, "invite changed");
    let curl = format!("curl -sS --fail --socks5-hostname 127.0.0.1:1080 {url}");
    // The server looks for new clients once a second.
    until("the second client is known", || world.output(&curl).status.success());
}

#[test]
fn root_stores_the_machines_invite_and_under_sudo_finds_the_callers() {
    let _others = support::among_others();
    let Some(world) = World::set("join-root", &[]) else { return };
    let connect = format!(
        "printf 'GET /7 HTTP/1.0\\r\\n\\r\\n' | marline connect {WIFI} {TARGET_V4} {}",
        targets::HTTP
    );
    let said = as_root(
        &world,
        &format!("marline join < invite; stat -c '%a %U' /etc/marline/invite; {connect}"),
    );
    assert!(said.contains("/etc/marline/invite") && said.contains("600 root"), "{said}");
    assert!(said.contains("200"), "{said}");
    // The user has joined, but root has not.
    seen(&world, "marline join < invite", true);
    let said = as_root(&world, &format!("export SUDO_UID=1000; {connect}"));
    assert!(said.contains("200"), "{said}");
    // The user's invite is found only through sudo, and only if the user owns the file.
    let said = as_root(&world, &connect);
    assert!(said.contains("marline join"), "{said}");
    let said = as_root(
        &world,
        &format!("chown 1001 .config/marline/invite; export SUDO_UID=1000; {connect}"),
    );
    assert!(said.contains("belongs to user 1001"), "{said}");
}

#[test]
fn sudo_marline_up_takes_the_callers_invite_waits_for_a_path_and_can_be_reloaded() {
    let _others = support::among_others();
    let Some(world) = World::set("sudo-up", &["curl"]) else { return };
    seen(&world, "marline join < invite", true);
    let url = format!("http://{TARGET_V4}:{}/1000", targets::HTTP);
    let said = as_root(
        &world,
        &format!(
            r#"export SUDO_UID=1000
            marline up --path wifi --path lte9 --dns {TARGET_V4} --control up.sock > up.log 2>&1 &
            saw() {{
                for try in {{1..400}}; do grep -q "$1" up.log && return; sleep 0.1; done
                echo "no $1 in"; cat up.log; marline down; exit 1
            }}
            saw 'path lte9: interface `lte9` not found'
            saw "goes through the server"
            curl -sS --fail --max-time 20 {url} | wc -c
            # The process has dropped the capability to read the user's files.
            kill -HUP $!
            saw "keeping the current invite"
            saw "configuration reloaded"
            ip link set lte down; ip link set lte name lte9; ip link set lte9 up
            ip addr replace 10.0.2.2/24 dev lte9
            saw "path lte9: available, at"
            marline down; wait; echo "that is all""#
        ),
    );
    assert!(said.contains("1000\n") && said.contains("that is all"), "{said}");
}

#[test]
fn commands_that_need_root_name_the_remedy() {
    let _others = support::among_others();
    let Some(world) = World::set("rootless", &[]) else { return };
    seen(&world, "marline join < invite", true);
    for (command, says) in [
        ("up", "sudo marline up"),
        ("up", "marline run -- PROGRAM"),
        ("down", "sudo marline down"),
        ("client --path wifi --socks5 127.0.0.1:80", "CAP_NET_BIND_SERVICE"),
        ("client --path wifi --carrier raw", "CAP_NET_RAW"),
        ("serve --listen 127.0.0.1:8443 --to 127.0.0.1:80", "CAP_NET_RAW"),
    ] {
        let said = seen(&world, &format!("marline {command}"), false);
        assert!(said.contains(says) && said.lines().count() == 1, "{command}: {said}");
    }
    let said = seen(
        &world,
        "mkdir low; cd low
         marline server --init --config low.toml --listen 127.0.0.1:443 2> /dev/null > /dev/null
         marline server --config low.toml",
        false,
    );
    assert!(said.contains("CAP_NET_BIND_SERVICE"), "{said}");
    let said = as_root(
        &world,
        "mount --bind /dev/null /dev/net/tun; umount /dev/net/tun; mount -t tmpfs tmpfs /dev/net
         marline up --invite-file invite || true",
    );
    assert!(said.contains("modprobe tun"), "{said}");
}

#[test]
fn a_path_that_is_not_there_is_waited_for_while_the_program_runs() {
    let _others = support::among_others();
    let Some(mut world) = World::set("absent", &["curl"]) else { return };
    let client = "./as-user marline client --invite-file invite --path wifi --path lte9 \
                  --path 10.7.0.9 --socks5 127.0.0.1:1080 --control absent.sock";
    let lines = world.hosts.program(Side::Client, client);
    // Helps a user who has mistyped the name.
    let said = hear(&lines, "path lte9: interface `lte9` not found");
    assert!(said.contains("waiting") && said.contains("wifi") && said.contains("lte"), "{said}");
    hear(&lines, "path 10.7.0.9: no interface of this machine has the address");
    hear(&lines, "socks5 listening");
    let url = format!("http://{TARGET_V4}:{}/1000", targets::HTTP);
    let curl = format!("curl -sS --fail --socks5-hostname 127.0.0.1:1080 {url}");
    assert!(seen(&world, &curl, true).len() >= 1_000);
    world.hosts.shell(
        Side::Client,
        "ip link set lte down; ip link set lte name lte9; ip link set lte9 up
         ip addr replace 10.0.2.2/24 dev lte9; ip route replace default via 10.0.2.1 dev lte9 metric 200
         ip link add other type veth peer name else; ip link set else up
         ip addr add 10.7.0.9/24 dev other; ip link set other up",
    );
    hear(&lines, "path lte9: available, at");
    hear(&lines, "path 10.7.0.9: available, at");
    // This path alone carries the following data.
    world.hosts.net.command("wifi", "down").expect("WiFi dies");
    until("the path that came late carries data", || {
        world.output(&format!("timeout 10 {curl}")).status.success()
    });
    // A one-shot command reports the missing path.
    let said =
        seen(&world, "marline connect --invite-file invite --path nosuch0 a.example 1", false);
    assert!(said.contains("nosuch0") && said.lines().count() == 1, "{said}");
}

#[test]
fn connect_prints_only_the_fatal_error_to_an_ssh_terminal() {
    let _others = support::among_others();
    let Some(world) = World::set("quiet", &[]) else { return };
    let connect = |flags: &str, port: u16| {
        format!(
            "printf 'GET /7 HTTP/1.0\\r\\n\\r\\n' | marline {flags} connect --invite-file invite \
             --path wifi --path nosuch0 {TARGET_V4} {port}"
        )
    };
    let output = world.output(&connect("", targets::HTTP));
    let (out, err) = support::texts(&output);
    assert!(output.status.success() && out.contains("200") && err.is_empty(), "{out}\n{err}");
    let output = world.output(&connect("-v", targets::HTTP));
    assert!(support::texts(&output).1.contains("nosuch0"), "-v has the rest");
    // A port without a listener.
    let output = world.output(&connect("", 1));
    let (_, err) = support::texts(&output);
    assert!(!output.status.success() && err.lines().count() == 1, "{err}");
    assert!(err.starts_with("marline: "), "{err}");
}

/// Runs a command in a terminal. Returns its output.
fn in_terminal(world: &World, text: &str) -> String {
    seen(world, &format!("script -qec '{text}' /dev/null"), true)
}

#[test]
fn warnings_stay_out_of_a_terminal_that_belongs_to_the_program() {
    let _others = support::among_others();
    let Some(world) = World::set("terminal", &["script", "getent"]) else { return };
    // Names do not resolve there, which causes a warning.
    let run = |flags: &str| {
        format!(
            "marline {flags} run --invite-file invite --path wifi --dns 203.0.113.7:99 -- \
             bash -c \"test -t 2; ! getent hosts www.example.test; echo shown\""
        )
    };
    let shown = in_terminal(&world, &run(""));
    assert!(
        shown.contains("shown") && !shown.contains("WARN") && !shown.contains("--dns"),
        "{shown}"
    );
    let log = std::fs::read_to_string(world.dir().join(".local/state/marline/run.log"));
    let log = log.expect("a log");
    assert!(log.contains("WARN") && log.contains("--dns") && !log.contains('\x1b'), "{log}");
    assert!(in_terminal(&world, &run("-v")).contains("--dns"));
}

#[test]
fn mobile_data_that_nothing_limits_is_announced_once() {
    let _others = support::among_others();
    let Some(mut world) = World::set("mobile", &[]) else { return };
    let mut started = |options: &str, socks5: &str| {
        let client = format!(
            "marline client --invite-file invite --socks5 {socks5} \
             --control {socks5}.sock --state-file state {options}"
        );
        let lines = world.hosts.program(Side::Client, &client);
        let mut said = Vec::new();
        let begun = Instant::now();
        while !said.last().is_some_and(|line: &String| line.contains("socks5 listening")) {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            said.push(lines.recv_timeout(left).expect("the client starts"));
        }
        said.retain(|line| line.contains("mobile data"));
        said
    };
    // Found by its default route.
    let said = started("", "127.0.0.1:1080");
    assert_eq!(said.len(), 1, "{said:?}");
    let said = started("--path wifi --path lte", "127.0.0.1:1081");
    assert_eq!(said.len(), 1, "{said:?}");
    for part in ["path lte looks like mobile data", "mode balanced", "a quarter", "`,metered`"] {
        assert!(said[0].contains(part), "{part} not in {said:?}");
    }
    for (number, limited) in
        ["lte,metered", "lte,backup", "lte,unmetered", "lte --path-quota lte=1GB", "wifi2"]
            .into_iter()
            .enumerate()
    {
        let options = format!("--path wifi --path {limited}");
        let said = started(&options, &format!("127.0.0.1:109{number}"));
        assert!(said.is_empty(), "{options}: {said:?}");
    }
}
