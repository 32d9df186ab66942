//! mosh inside `marline run`: typed text is echoed on the screen, also after WiFi has failed, until the end.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::run::World;
use super::{PATIENCE, Side, TARGET_V4, lost_to_outages, support};

const PORT: u16 = 60_001;
/// Duration of typing after WiFi has failed.
const AFTER: Duration = Duration::from_secs(5);

/// A server that runs in the background.
struct Server(Pid);

impl Drop for Server {
    fn drop(&mut self) {
        // If the test succeeded, the server has already ended by itself.
        let name = std::fs::read_to_string(format!("/proc/{}/comm", self.0.as_raw_nonzero()));
        if name.is_ok_and(|name| name.trim() == "mosh-server") {
            let _ = kill_process(self.0, Signal::KILL);
        }
    }
}

/// A terminal with a simulated user.
struct Terminal {
    program: Child,
    keys: Option<ChildStdin>,
    screen: Arc<(Mutex<Vec<u8>>, Condvar)>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

impl Terminal {
    fn of(mut program: Child) -> Terminal {
        let keys = program.stdin.take();
        let mut output = program.stdout.take().expect("piped");
        let screen = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let drawn = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                drawn.0.lock().expect("lock").extend_from_slice(&buffer[..read]);
                drawn.1.notify_all();
            }
        });
        Terminal { program, keys, screen }
    }

    fn type_line(&mut self, line: &str) {
        let keys = self.keys.as_mut().expect("until the end");
        writeln!(keys, "{line}").and_then(|()| keys.flush()).expect("typed");
    }

    /// Waits until this new text is on the screen.
    fn see(&self, text: &str) {
        let (screen, changed) = &*self.screen;
        let drawn = screen.lock().expect("lock");
        let there = |screen: &[u8]| screen.windows(text.len()).any(|at| at == text.as_bytes());
        let waited = changed.wait_timeout_while(drawn, PATIENCE, |drawn| !there(drawn));
        let (mut drawn, timeout) = waited.expect("lock");
        assert!(!timeout.timed_out(), "no {text}: {}", String::from_utf8_lossy(&drawn));
        drawn.clear();
    }

    /// Makes the far end draw a row of one letter. Returns the time until it appears. Rows of different letters share
    /// no cell, so that the whole row is drawn, and the typed command does not contain the row.
    fn echo(&mut self, letter: char) -> Duration {
        let begun = Instant::now();
        self.type_line(&format!("printf %012d\\\\n 0 | tr 0 {letter}"));
        self.see(&letter.to_string().repeat(12));
        begun.elapsed()
    }
}

#[test]
fn mosh_inside_continues_when_wifi_dies() {
    let _others = support::among_others();
    let programs = ["mosh-server", "mosh-client", "script"];
    let Some(world) = World::set("app-mosh", &programs) else { return };
    // The server is not a child of this process, so it needs a separate cleanup.
    let said = world.hosts.shell(
        Side::Server,
        &format!(
            "LC_ALL=C.UTF-8 PS1='$ ' MOSH_SERVER_NETWORK_TMOUT=50 \
             mosh-server new -i {TARGET_V4} -p {PORT} -- bash --norc --noprofile 2>&1"
        ),
    );
    let word_after = |word: &str| {
        let rest = said.split(word).nth(1).and_then(|rest| rest.split_whitespace().next());
        rest.unwrap_or_else(|| panic!("no {word:?} in {said}")).trim_end_matches(']').to_owned()
    };
    let pid = word_after("pid = ").parse().ok().and_then(Pid::from_raw).expect("a process id");
    let server = Server(pid);
    let mut command = world.command(&format!(
        "exec script -qefc \"stty rows 24 cols 80; $run mosh-client {TARGET_V4} {PORT}\" /dev/null"
    ));
    command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    command.env("MOSH_KEY", word_after(&format!("CONNECT {PORT} ")));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let client = world.hosts.net.spawn(Side::Client, &mut command).expect("spawn");
    let mut terminal = Terminal::of(client);
    for letter in 'a'..='e' {
        terminal.echo(letter);
    }
    world.hosts.net.command("wifi", "down").expect("WiFi dies");
    let died = Instant::now();
    let mut gap = Duration::ZERO;
    for letter in ('A'..='Z').cycle() {
        gap = gap.max(terminal.echo(letter));
        std::thread::sleep(Duration::from_millis(50));
        if died.elapsed() > AFTER {
            break;
        }
    }
    println!("gap: {} ms from a key to the screen of mosh inside marline run", gap.as_millis());
    terminal.type_line("exit");
    terminal.see("[mosh is exiting.]");
    assert!(terminal.program.wait().expect("wait").success());
    world.wait_for_nothing();
    drop(server);
    assert!(lost_to_outages(&world.hosts) > 0, "no packet was on WiFi when it failed");
}
