//! Benchmark of HTTP without keep-alive: one connection per request.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use marline_testkit::need;

use crate::spread;
use crate::support::{Running, start_server};

const ROUNDS: usize = 9;
/// Clients at the same time, and requests per round.
const CROWDS: [(usize, usize); 2] = [(25, 4_000), (1, 1_000)];

const NGINX: &str = "daemon off; pid nginx.pid; error_log stderr crit; worker_processes 1;
events { worker_connections 4096; }
http { access_log off; client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp;
uwsgi_temp_path tmp; scgi_temp_path tmp;
server { listen PORT backlog=4096; location / { return 200 hello; } } }
";

/// nginx; it ends with this.
struct Web(Child);

impl Drop for Web {
    fn drop(&mut self) {
        // Its worker hears of it from the master only.
        let _ = Command::new("kill").args(["-s", "TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

fn web(program: &Path, dir: &Path) -> (Web, u16) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    drop(listener);
    let config = NGINX.replace("PORT", &format!("127.0.0.1:{port}"));
    std::fs::write(dir.join("nginx.conf"), config).expect("a file");
    let mut command = Command::new(program);
    command.args(["-p", ".", "-c", "nginx.conf"]).current_dir(dir).stdin(Stdio::null());
    let web = Web(command.spawn().expect("nginx"));
    let until = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "nginx does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    (web, port)
}

/// Requests per second.
fn rate(ab: &Path, port: u16, (clients, requests): (usize, usize)) -> f64 {
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

/// Prints how many requests go through a second, and how many straight.
pub(crate) fn measure() {
    let (Some(nginx), Some(ab)) = (need::program("nginx"), need::program("ab")) else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let (_web, straight) = web(&nginx, dir.path());
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let (invite, forward) =
        (server.invite_file.to_str().unwrap(), format!("0:127.0.0.1:{straight}"));
    let args = ["client", "--invite-file", invite, "--path", &path, "-L", &forward];
    let mut client = Running::start(dir.path(), &args);
    let through = client.address_after("forward listening on ").port();
    rate(&ab, through, (25, 500));
    println!("HTTP without keep-alive over loopback, requests/s (median, least, most of {ROUNDS})");
    for crowd in CROWDS {
        let (mut direct, mut proxied) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            direct.push(rate(&ab, straight, crowd));
            proxied.push(rate(&ab, through, crowd));
        }
        let ratios = direct.iter().zip(&proxied).map(|(d, p)| p / d).collect();
        let (d, p, r) = (spread(direct), spread(proxied), spread(ratios));
        println!(
            "{:>3} at once: direct {:.0} ({:.0} to {:.0}), through {:.0} ({:.0} to {:.0}), \
             ratio {:.3} ({:.3} to {:.3})",
            crowd.0, d.0, d.1, d.2, p.0, p.1, p.2, r.0, r.1, r.2
        );
    }
}
