//! Tests of applications that open many proxied connections concurrently; none may fail.

use super::support;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use marline_testkit::{free_address, need};

use super::support::{Beside, Running, ServerSide, listens, start_server, texts};

/// Time limit for any program.
const PATIENCE_S: &str = "120";
const HOSTS: usize = 40;
const FILES: usize = 200;

/// Starts a program and waits until it listens.
fn start(command: &mut Command, port: u16) -> Beside {
    let beside = Beside::start(command.stdout(Stdio::null()));
    listens((Ipv4Addr::LOCALHOST, port).into());
    beside
}

const NGINX: &str = "
daemon off;
pid nginx.pid;
error_log stderr;
worker_processes 1;
events { worker_connections 4096; }
http {
    access_log off;
    types { text/html html; image/svg+xml svg; }
    client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp; uwsgi_temp_path tmp;
    scgi_temp_path tmp;
    server { listen PORT; root web; }
    server { listen MULTI http2; root web; }
}
";

/// A web server for HTTP/1.1 and one for HTTP/2 in clear.
struct Web {
    one: u16,
    two: u16,
    nginx: Beside,
}

fn web(program: &Path, dir: &Path) -> Web {
    let (one, two) = (free_address().port(), free_address().port());
    for name in ["web", "tmp"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    std::fs::write(dir.join("web/index.html"), "Hello\n").unwrap();
    let config = NGINX.replace("PORT", &one.to_string()).replace("MULTI", &two.to_string());
    std::fs::write(dir.join("nginx.conf"), config).unwrap();
    // The worker of nginx as root runs as another user.
    let opened = Command::new("chmod").arg("-R").arg("a+rwX").arg(dir).status();
    assert!(opened.unwrap().success());
    let mut command = Command::new(program);
    command.arg("-p").arg(dir).args(["-c", "nginx.conf"]);
    Web { one, two, nginx: start(&mut command, one) }
}

/// A client with a SOCKS5 port and a forward.
struct Through {
    _server: ServerSide,
    _client: Running,
    socks: SocketAddr,
    forward: SocketAddr,
}

fn through(dir: &Path, port: u16) -> Through {
    let server = start_server(dir, &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let (invite, forward) = (server.invite_file.to_str().unwrap(), format!("0:127.0.0.1:{port}"));
    let args = ["client", "--invite-file", invite, "--socks5", "127.0.0.1:0", "-L", &forward];
    let mut client = Running::start(dir, &[&args[..], &["--path", &path]].concat());
    let socks = client.address_after("socks5 listening on ");
    let forward = client.address_after("forward listening on ");
    Through { _server: server, _client: client, socks, forward }
}

/// Runs a program to its end. Returns its output.
fn finish(program: &Path, args: &[&str]) -> String {
    let mut command = Command::new("timeout");
    let output = command.arg(PATIENCE_S).arg(program).args(args).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{args:?}: {}\n{out}\n{err}", output.status);
    assert!(!err.contains("rror"), "{args:?}: {err}");
    out
}

/// Returns the members of a process group, regardless of their parent.
fn members(group: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let member = |entry: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // Fields after the name, which may contain any character: state, parent, group.
        let mut words = stat.rsplit_once(") ")?.1.split(' ');
        let (state, of) = (words.next()?, words.nth(1)?);
        (state != "Z" && of == group.to_string()).then_some(stat)
    };
    processes.filter_map(member).collect()
}

#[test]
fn worker_processes_of_a_test_server_end_with_it() {
    let _others = support::among_others();
    let Some(nginx) = need::program("nginx") else { return };
    let dir = tempfile::tempdir().unwrap();
    let web = web(&nginx, dir.path());
    let group = web.nginx.id();
    let until = Instant::now() + Duration::from_secs(10);
    while members(group).len() < 2 {
        assert!(Instant::now() < until, "no worker");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(web);
    while !members(group).is_empty() {
        assert!(Instant::now() < until, "{:?}", members(group));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn redis_benchmark_with_fifty_connections_fails_nowhere() {
    let _others = support::among_others();
    let Some(server) = need::program("redis-server") else { return };
    let Some(benchmark) = need::program("redis-benchmark") else { return };
    let dir = tempfile::tempdir().unwrap();
    let port = free_address().port();
    let mut command = Command::new(server);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let _redis = start(command.arg("--dir").arg(dir.path()), port);
    let way = through(dir.path(), port);
    let forward = way.forward.port().to_string();
    let out =
        finish(&benchmark, &["-p", &forward, "-c", "50", "-n", "2000", "-t", "set,get", "-q"]);
    for command in ["SET:", "GET:"] {
        assert!(out.contains(command) && out.contains("requests per second"), "{out}");
    }
    // Each request on a connection of its own.
    finish(&benchmark, &["-p", &forward, "-c", "50", "-n", "1000", "-k", "0", "-t", "get", "-q"]);
}

#[test]
fn a_hundred_connections_of_h2load_and_a_thousand_of_ab_fail_nowhere() {
    let _others = support::among_others();
    let Some(nginx) = need::program("nginx") else { return };
    let Some(h2load) = need::program("h2load") else { return };
    let Some(ab) = need::program("ab") else { return };
    let dir = tempfile::tempdir().unwrap();
    let web = web(&nginx, dir.path());
    let way = through(dir.path(), web.two);
    let url = format!("http://{}/", way.forward);
    let out = finish(&h2load, &["-c", "100", "-m", "10", "-n", "5000", &url]);
    assert!(out.contains("5000 succeeded, 0 failed, 0 errored"), "{out}");
    drop(way);

    let dir = tempfile::tempdir().unwrap();
    let way = through(dir.path(), web.one);
    // Through a forward, and through the HTTP proxy.
    let (forward, web) =
        (format!("http://{}/", way.forward), format!("http://127.0.0.1:{}/", web.one));
    let proxy = way.socks.to_string();
    for target in [&[forward.as_str()][..], &["-X", &proxy, &web]] {
        let out = finish(&ab, &[&["-q", "-c", "25", "-n", "1000"], target].concat());
        let failed = out.lines().find(|line| line.starts_with("Failed requests:")).unwrap_or(&out);
        assert_eq!(failed.split_whitespace().last(), Some("0"), "{out}");
        assert!(out.contains("Complete requests:      1000"), "{out}");
        assert!(!out.contains("Non-2xx"), "{out}");
    }
}

/// A page with pictures from many hosts, which shows at the end how many have loaded.
fn page(dir: &Path, port: u16) {
    let mut text = String::from("<!doctype html><title>crowd</title><body>\n");
    for file in 0..FILES {
        let picture = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><!-- {file} {} --></svg>",
            "x".repeat(4_000)
        );
        std::fs::write(dir.join(format!("web/{file}.svg")), picture).unwrap();
        let host = file % HOSTS + 1;
        writeln!(text, "<img src='http://127.0.1.{host}:{port}/{file}.svg'>").unwrap();
    }
    text.push_str(
        "<script>addEventListener('load', () => { document.title = 'pictures ' + \
         [...document.images].filter(i => i.complete && i.naturalWidth == 9).length })</script>",
    );
    std::fs::write(dir.join("web/crowd.html"), text).unwrap();
}

fn browse(browser: &Path, home: &PathBuf, socks: SocketAddr, url: &str) -> String {
    let profile = format!("--user-data-dir={}", home.display());
    let proxy = format!("--proxy-server=socks5://{socks}");
    let mut command = Command::new("timeout");
    command.arg(PATIENCE_S).arg(browser).args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        // Also for loopback.
        "--proxy-bypass-list=<-loopback>",
        "--timeout=90000",
        "--dump-dom",
        &profile,
        &proxy,
        url,
    ]);
    let output = command.env("HOME", home).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{}\n{err}", output.status);
    out
}

#[test]
fn a_browser_loads_two_hundred_files_of_forty_hosts() {
    let _others = support::among_others();
    let Some(nginx) = need::program("nginx") else { return };
    let Some(browser) = need::program("chromium") else { return };
    let dir = tempfile::tempdir().unwrap();
    let web = web(&nginx, dir.path());
    page(dir.path(), web.one);
    let way = through(dir.path(), web.one);
    let url = format!("http://127.0.1.1:{}/crowd.html", web.one);
    for round in 0..3 {
        let home = dir.path().join(format!("home{round}"));
        std::fs::create_dir_all(&home).unwrap();
        let dom = browse(&browser, &home, way.socks, &url);
        let title = dom.split("<title>").nth(1).and_then(|rest| rest.split('<').next());
        assert_eq!(title, Some(format!("pictures {FILES}").as_str()), "round {round}");
    }
}
