//! Tests of long-term operation: changing settings, quotas, and full disks.

mod agreement;
mod deadlines;
mod disk_full;
mod hints;
mod metrics;
mod moving;
mod numbers;
mod quotas;
mod reload;
mod targets;
mod upgraded_quotas;
mod verdicts;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::support;

/// Time limit for an expected state.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the condition is true.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the value of a metric at an address. 0 if it is missing.
fn metric(at: SocketAddr, name: &str) -> u64 {
    let mut stream = TcpStream::connect(at).expect("metrics");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("metrics as text");
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or("0");
    value.parse::<f64>().expect("a number") as u64
}

/// Sends bytes and reads their echoes until an error.
fn pump(stream: &mut TcpStream, bytes: usize) -> std::io::Result<()> {
    let chunk = vec![7; 10_000];
    let mut back = vec![0; chunk.len()];
    stream.set_read_timeout(Some(PATIENCE))?;
    for _ in 0..bytes / chunk.len() {
        stream.write_all(&chunk)?;
        stream.read_exact(&mut back)?;
    }
    Ok(())
}

/// Runs a command on a program's control socket, and returns its output. `ok`: true if it must succeed.
fn ask(dir: &Path, args: &[&str], ok: bool) -> String {
    if ok { support::run_ok(dir, args) } else { support::run_err(dir, args) }
}

/// Returns the output of `marline status`, regardless of its exit status.
fn look(dir: &Path, args: &[&str]) -> String {
    let output = support::run(dir, args);
    let (out, err) = support::texts(&output);
    assert!(matches!(output.status.code(), Some(0 | 2)), "marline {args:?}: {err}");
    out
}
