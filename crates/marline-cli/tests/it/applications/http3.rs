//! A page over HTTP/3 in Chromium inside `marline run`: the protocol stays HTTP/3, and its UDP survives a WiFi
//! failure.

use std::time::Instant;

use super::browser::{self, HOST, SECURE};
use super::run::World;
use super::{Side, TARGET_V4, lost_to_outages, support, wait_for_file};

/// Size of the page's largest part in bytes: seconds of both links.
const LARGE: usize = 6_000_000;
const PICTURES: usize = 30;

#[test]
fn a_page_over_http3_stays_so_inside_and_survives_wifi() {
    let _others = support::among_others();
    let Some(mut world) = World::set("app-h3", &browser::PROGRAMS) else { return };
    let web = world.dir().join("web");
    std::fs::create_dir(&web).expect("directory");
    let page = browser::pictures(&web, (0..PICTURES).map(|_| String::new()));
    let large =
        "<script src='/large.js'></script><script>document.body.append(`large ${large}`)</script>";
    std::fs::write(web.join("page.html"), page + large).expect("write");
    let content = format!("const large = {LARGE} //{}", "x".repeat(LARGE));
    std::fs::write(web.join("large.js"), content).expect("write");
    browser::serve(&mut world.hosts);
    let url = format!("https://{HOST}:{SECURE}/page.html");
    let flags = format!("--origin-to-force-quic-on={HOST}:{SECURE}");
    let shown = browser::browse(world.dir(), &url, &flags);
    let mut command = world.command(&format!("$run {shown}"));
    command.stdout(std::process::Stdio::piped());
    let begun = Instant::now();
    let child = world.hosts.net.spawn(Side::Client, &mut command).expect("spawn");
    // The page itself has loaded, but most of its parts have not.
    wait_for_file(&world.dir().join("requests"));
    world.hosts.net.command("wifi", "down").expect("WiFi dies");
    let output = child.wait_with_output().expect("output");
    let (dom, _) = support::texts(&output);
    let took = begun.elapsed().as_millis();
    assert!(output.status.success(), "{}: {}", output.status, browser::log(world.dir()));
    let (title, wanted) = (browser::title(&dom), format!("pictures {PICTURES} by h3 after "));
    assert!(title.starts_with(&wanted), "{title}: {}", browser::log(world.dir()));
    assert!(dom.contains(&format!("large {LARGE}")), "the whole script");
    let requests = browser::requests(world.dir());
    assert!(requests.len() > PICTURES, "{} requests", requests.len());
    for request in &requests {
        assert_eq!(request["request"]["proto"], "HTTP/3.0", "{request}");
    }
    assert!(lost_to_outages(&world.hosts) > 0, "the transfer ended before WiFi failed");
    println!("a page of {LARGE} bytes over HTTP/3 from {TARGET_V4} was complete after {took} ms");
    world.wait_for_nothing();
}
