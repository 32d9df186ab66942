//! Benchmark of HTTP without keep-alive: one connection per request.

use std::path::Path;
use std::process::Command;

use marline_testkit::need;

use crate::spread::{Spread, ratios};
use crate::support::nginx::page;
use crate::support::{Running, start_server};

const ROUNDS: usize = 9;
const CROWDS: [Crowd; 2] =
    [Crowd { clients: 25, requests: 4_000 }, Crowd { clients: 1, requests: 1_000 }];

#[derive(Copy, Clone)]
struct Crowd {
    /// Number of concurrent clients.
    clients: usize,
    /// Number of requests per round.
    requests: usize,
}

/// Returns the requests per second.
fn rate(ab: &Path, port: u16, crowd: Crowd) -> f64 {
    let Crowd { clients, requests } = crowd;
    let mut command = Command::new(ab);
    command.args(["-q", "-c", &clients.to_string(), "-n", &requests.to_string()]);
    let output = command.arg(format!("http://127.0.0.1:{port}/")).output().expect("ab");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let word = line.and_then(|line| line[name.len()..].split_whitespace().next());
        word.and_then(|word| word.parse::<f64>().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    assert!(field("Failed requests:") == 0.0, "{text}");
    field("Requests per second:")
}

/// Prints the requests per second through the forward, and directly.
pub(crate) fn measure() {
    let (Some(nginx), Some(ab)) = (need::program("nginx"), need::program("ab")) else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let (_web, straight) = page(&nginx, dir.path(), "hello");
    let straight = straight.port();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let (invite, forward) =
        (server.invite_file.to_str().unwrap(), format!("0:127.0.0.1:{straight}"));
    let args = ["client", "--invite-file", invite, "--path", &path, "-L", &forward];
    let mut client = Running::start(dir.path(), &args);
    let through = client.address_after("forward listening on ").port();
    rate(&ab, through, Crowd { clients: 25, requests: 500 });
    println!(
        "HTTP without keep-alive over loopback, requests/s (median, minimum and maximum of {ROUNDS})"
    );
    for crowd in CROWDS {
        let (mut direct, mut proxied) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            direct.push(rate(&ab, straight, crowd));
            proxied.push(rate(&ab, through, crowd));
        }
        println!(
            "{:>3} concurrent: direct {:.0}, through {:.0}, ratio {:.3}",
            crowd.clients,
            Spread::of(direct.clone()),
            Spread::of(proxied.clone()),
            ratios(&proxied, &direct)
        );
    }
}
