//! A page whose hundred files use a hundred connections, in Chromium inside `marline run` and on a machine with
//! `marline up`, while WiFi fails.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::browser;
use super::{PATIENCE, Side, TwoUplinks, lost_to_outages, run, support, up};

/// Hosts of the pictures, and pictures per host: as many as a browser opens connections to one host.
const HOSTS: usize = 20;
const OF_EACH: usize = 6;
const PICTURES: usize = HOSTS * OF_EACH;
/// Number of requests after which WiFi fails.
const BEFORE: usize = 5;

/// Creates the pages, and starts the hosts that serve them.
pub(super) fn set(hosts: &mut TwoUplinks) {
    let web = hosts.dir.join("web");
    std::fs::create_dir(&web).expect("directory");
    let host = |number: usize| format!("203.0.113.{}", 20 + number);
    let addresses = (0..HOSTS).map(|number| format!("ip addr add {}/32 dev lo\n", host(number)));
    hosts.shell(Side::Server, &addresses.collect::<String>());
    let base = |n: usize| format!("http://{}:{}", host(n % HOSTS), browser::PLAIN);
    let page = browser::pictures(&web, (0..PICTURES).map(base));
    std::fs::write(web.join("page.html"), page).expect("write");
    browser::serve(hosts);
}

/// Lets WiFi fail while the page loads, and checks the final page.
fn shows_all(hosts: &TwoUplinks, browser: Child, way: &str) {
    let begun = Instant::now();
    while browser::requests(&hosts.dir).len() < BEFORE {
        assert!(begun.elapsed() < PATIENCE, "no request arrives: {}", browser::log(&hosts.dir));
        std::thread::sleep(Duration::from_millis(10));
    }
    hosts.net.command("wifi", "down").expect("WiFi dies");
    let output = browser.wait_with_output().expect("output");
    let (dom, _) = support::texts(&output);
    println!(
        "{PICTURES} pictures {way} had loaded {} ms after Chromium started",
        begun.elapsed().as_millis()
    );
    assert!(output.status.success(), "{}: {}", output.status, browser::log(&hosts.dir));
    assert!(load_time_ms(browser::title(&dom)).is_some(), "{}", browser::title(&dom));
    let connections = connections(&hosts.dir);
    assert!(connections > PICTURES, "{connections} connections");
    assert!(lost_to_outages(hosts) > 0, "the transfer ended before WiFi failed");
}

/// Returns the time in the title of a page with all pictures.
pub(super) fn load_time_ms(title: &str) -> Option<f64> {
    let time = title.strip_prefix(&format!("pictures {PICTURES} by http/1.1 after "))?;
    time.strip_suffix(" ms")?.parse().ok()
}

/// Returns the number of connections used by the requests.
fn connections(dir: &Path) -> usize {
    let requests = browser::requests(dir);
    let from = |request: &serde_json::Value| {
        let field = |name: &str| request["request"][name].as_str().unwrap_or_default().to_owned();
        (field("remote_ip"), field("remote_port"), field("host"))
    };
    requests.iter().map(from).collect::<BTreeSet<_>>().len()
}

#[test]
fn a_page_of_a_hundred_connections_is_shown_inside_marline_run() {
    let _others = support::among_others();
    let Some(mut world) = run::World::set("app-crowd", &browser::PROGRAMS) else { return };
    set(&mut world.hosts);
    let shown = browser::browse(world.dir(), &browser::plain("page.html"), "");
    let mut command = world.command(&format!("$run {shown}"));
    shows_all(&world.hosts, start(&world.hosts, &mut command), "inside marline run");
    world.wait_for_nothing();
}

#[test]
fn a_page_of_a_hundred_connections_is_shown_on_a_machine_with_marline_up() {
    let _others = support::among_others();
    let Some(mut world) = up::World::set("app-crowd-up", &browser::PROGRAMS) else { return };
    set(&mut world.hosts);
    world.up("--path wifi --path lte");
    let browser = world.spawn(&browser::browse(world.dir(), &browser::plain("page.html"), ""));
    shows_all(&world.hosts, browser, "with marline up");
}

fn start(hosts: &TwoUplinks, command: &mut Command) -> Child {
    hosts.net.spawn(Side::Client, command.stdout(Stdio::piped())).expect("spawn")
}
