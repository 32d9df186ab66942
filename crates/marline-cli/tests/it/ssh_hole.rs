//! Test of a real `ssh` session through `marline client` and `marline server`, over WiFi and a sleeping LTE radio: keys
//! are typed, WiFi fails, and the echo continues. Prints the length of the gap, which docs/start/quickstart.md quotes.
//! Also in the other direction: a session from the server's machine to the client's, through a remote forward (-R).
//! Needs root.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it ssh_hole -- --nocapture
//! ```

use super::support;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::support::two_uplinks::{self, TwoUplinks, hear};
use super::upgrade::{TookOver, wait_until_gone};
use marline_lab::scenario::Side;

const SCENARIO: &str = include_str!("support/phone.toml");

/// Interval between keys.
const TYPES_EVERY: Duration = Duration::from_millis(50);
/// Number of keys before WiFi fails (by then the radio of an LTE subflow that was opened at the start sleeps again),
/// and after.
const BEFORE: usize = 280;
const AFTER: usize = 160;
/// Time limit for a login, and for the echo of a key.
const READY: Duration = Duration::from_secs(20);
/// Promotion of the LTE radio and a round trip, which cannot be avoided.
const PROMOTION_AND_WAY: Duration = Duration::from_millis(260 + 60);

/// Two hosts with the server's programs running.
fn set(dir: &Path) -> TwoUplinks {
    let mut hosts = TwoUplinks::set(SCENARIO, "ssh", dir);
    hosts.shell(Side::Server, SSHD_FILES);
    hear(&hosts.program(Side::Server, SSHD), "Server listening");
    hosts.marline_server("udp");
    hosts
}

/// Starts the SSH server for these files.
pub(crate) const SSHD: &str = "$(command -v sshd) -D -e -f sshd_config";

/// Keys and settings of an SSH server on loopback and of its client, in the directory in which it runs.
pub(crate) const SSHD_FILES: &str = "\
mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f host_key
ssh-keygen -q -t ed25519 -N '' -f key
cp key.pub authorized_keys
echo \"test $(cut -d ' ' -f 1,2 host_key.pub)\" > known_hosts
cat > sshd_config <<FILE
ListenAddress 127.0.0.1
Port 2222
HostKey $PWD/host_key
AuthorizedKeysFile $PWD/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
FILE
cat > ssh_config <<FILE
Host *
User root
Port 2222
IdentityFile $PWD/key
IdentitiesOnly yes
BatchMode yes
UserKnownHostsFile $PWD/known_hosts
HostKeyAlias test
ProxyCommand marline -q connect --socks5 127.0.0.1:1080 %h %p
FILE
";

type Lines = Arc<Mutex<Vec<(Instant, String)>>>;

/// Collects the output of a program, with the time of each piece.
fn collect(mut from: impl Read + Send + 'static) -> Lines {
    let said = Lines::default();
    let all = Arc::clone(&said);
    std::thread::spawn(move || {
        let mut buffer = [0; 4_096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
            all.lock().expect("lock").push((Instant::now(), text));
        }
    });
    said
}

/// Returns the time of each key's echo. The keys are the letters of the alphabet, in turn.
fn echoes(said: &Lines) -> Vec<Instant> {
    let said = said.lock().expect("lock");
    let typed = |c: &char| c.is_ascii_lowercase();
    said.iter().flat_map(|(at, text)| text.chars().filter(typed).map(|_| *at)).collect()
}

/// Types the key with this number and waits for its echo. Returns the time it took.
fn type_key(keyboard: &mut impl Write, said: &Lines, number: usize) -> Duration {
    let typed = Instant::now();
    keyboard.write_all(b"k").and_then(|()| keyboard.flush()).expect("type");
    while echoes(said).len() <= number {
        assert!(typed.elapsed() < READY, "key {number} has no echo");
        std::thread::sleep(Duration::from_millis(2));
    }
    typed.elapsed()
}

/// Types into an `ssh` session through a client with these options while WiFi fails. Returns the longest delay of
/// an echo before and after the failure, and the energy of LTE's packets in joules.
fn hole(dir: &Path, options: &str) -> (Duration, Duration, f64) {
    let mut hosts = set(dir);
    let client = format!(
        "marline client --invite-file invite --path wifi --path lte,backup \
         --socks5 127.0.0.1:1080 {options}"
    );
    hear(&hosts.program(Side::Client, &client), "socks5 listening on");
    // A terminal at the far end, which echoes typed text even if no program reads it.
    let mut command =
        hosts.command("exec ssh -F ssh_config -tt 127.0.0.1 'echo READY; exec cat > /dev/null'");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let ssh = hosts.spawn(Side::Client, &mut command);
    let said = collect(ssh.stdout.take().expect("piped"));
    let mut keyboard = ssh.stdin.take().expect("piped");
    let begun = Instant::now();
    while !said.lock().expect("lock").iter().any(|(_, text)| text.contains("READY")) {
        assert!(begun.elapsed() < READY, "no login: {:?}", said.lock().expect("lock"));
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut typed = Vec::new();
    for number in 0..BEFORE + AFTER {
        if number == BEFORE {
            hosts.net.command("wifi", "down").expect("WiFi dies");
        }
        let key = b'a' + (number % 26) as u8;
        typed.push(Instant::now());
        keyboard.write_all(&[key]).expect("type");
        // A line must end before the terminal's buffer is full.
        if number % 26 == 25 {
            keyboard.write_all(b"\r").expect("type");
        }
        keyboard.flush().expect("type");
        std::thread::sleep(TYPES_EVERY);
    }
    let patience = Instant::now();
    while echoes(&said).len() < typed.len() && patience.elapsed() < READY {
        std::thread::sleep(Duration::from_millis(20));
    }
    let came = echoes(&said);
    assert_eq!(came.len(), typed.len(), "{options}: keys without echo");
    let delays: Vec<Duration> =
        typed.iter().zip(&came).map(|(typed, came)| *came - *typed).collect();
    let (before, after) = delays.split_at(BEFORE);
    let longest = |delays: &[Duration]| delays.iter().copied().max().unwrap_or_default();
    let lte = hosts.net.report().expect("report").pop().and_then(|link| link.radio);
    let lte = lte.map_or(0.0, |radio| radio.energy.traffic_j());
    (longest(before), longest(after), lte)
}

#[test]
fn keys_are_echoed_although_wifi_dies() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&["ssh", "sshd", "ssh-keygen"]) {
        return;
    }
    for mode in ["handover", "interactive"] {
        let dir = tempfile::tempdir().expect("directory");
        let (before, after, joules) = hole(dir.path(), &format!("--mode {mode}"));
        println!(
            "--mode {mode}: longest echo {} ms, once WiFi died {} ms (a sleeping LTE radio's promotion \
             and a round trip are {} ms); LTE {joules:.1} J",
            before.as_millis(),
            after.as_millis(),
            PROMOTION_AND_WAY.as_millis(),
        );
        assert!(before < Duration::from_millis(500), "{mode}: {before:?} with both paths alive");
        assert!(after < Duration::from_secs(3), "{mode}: {after:?}");
    }
}

/// A session over ten upgrades of the server. WiFi fails after the fifth, so that another path is opened for a
/// connection of the first process.
#[test]
fn a_session_is_held_over_ten_upgrades_and_the_death_of_wifi() {
    const UPGRADES: usize = 10;
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&["ssh", "sshd", "ssh-keygen"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let mut hosts = set(dir.path());
    let client = "marline client --invite-file invite --path wifi --path lte,backup --mode handover \
                  --socks5 127.0.0.1:1080 --control client.control";
    hear(&hosts.program(Side::Client, client), "socks5 listening on");
    let mut command = hosts.command("exec ssh -F ssh_config 127.0.0.1 'exec cat'");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let ssh = hosts.spawn(Side::Client, &mut command);
    let said = collect(ssh.stdout.take().expect("piped"));
    let mut keyboard = ssh.stdin.take().expect("piped");
    let mut successors = Vec::new();
    let mut slowest = Duration::ZERO;
    // The first time includes the login.
    for number in 0..=2 * UPGRADES {
        if number % 2 == 1 {
            successors.push(TookOver::told_by(&hosts.shell(Side::Server, "marline upgrade")));
        }
        if number == UPGRADES {
            hosts.net.command("wifi", "down").expect("WiFi dies");
        }
        let echoed = type_key(&mut keyboard, &said, number);
        if number > 0 {
            slowest = slowest.max(echoed);
        }
    }
    println!("{UPGRADES} upgrades and WiFi's death: slowest echo {} ms", slowest.as_millis());
    let newest = successors.last().expect("ten").pid();
    for older in &successors[..UPGRADES - 1] {
        wait_until_gone(older.pid());
    }
    hosts.shell(Side::Server, &format!("kill {newest}"));
    wait_until_gone(newest);
}

#[test]
fn a_session_by_a_remote_forward_continues_although_wifi_dies() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&["ssh", "sshd", "ssh-keygen"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let mut hosts = TwoUplinks::set(SCENARIO, "ssh-r", dir.path());
    hosts.shell(Side::Client, SSHD_FILES);
    hear(&hosts.program(Side::Client, SSHD), "Server listening");
    hosts.marline_server("udp --allow-remote first@127.0.0.1:8022");
    let client = "marline client --invite-file invite --path wifi --path lte,backup --mode handover \
                  -R 8022:127.0.0.1:2222";
    hear(&hosts.program(Side::Client, client), "remote forward listening on 127.0.0.1:8022");
    let ssh = "exec ssh -F ssh_config -o ProxyCommand=none -p 8022 127.0.0.1 'exec cat'";
    let mut command = hosts.command(ssh);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let ssh = hosts.spawn(Side::Server, &mut command);
    let said = collect(ssh.stdout.take().expect("piped"));
    let mut keyboard = ssh.stdin.take().expect("piped");
    let mut slowest = [Duration::ZERO; 2];
    // The first time includes the login.
    for number in 0..41 {
        if number == 21 {
            hosts.net.command("wifi", "down").expect("WiFi dies");
        }
        let echoed = type_key(&mut keyboard, &said, number);
        if number > 0 {
            let worst = &mut slowest[usize::from(number > 20)];
            *worst = echoed.max(*worst);
        }
    }
    let [before, after] = slowest.map(|delay| delay.as_millis());
    println!("-R: slowest echo {before} ms, once WiFi died {after} ms");
}
