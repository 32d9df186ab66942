//! Chromium without a window, and a web server for it.

use std::fmt::Write as _;
use std::path::Path;

use super::{Side, TARGET_V4, TwoUplinks, hear};

/// Port of the pages over HTTP/1.1, with one connection per request.
pub(super) const PLAIN: u16 = 8_081;
/// Port of the pages over HTTP/3 and HTTP/2.
pub(super) const SECURE: u16 = 8_443;
/// Host name in the certificate.
pub(super) const HOST: &str = "www.example.test";

/// Configuration of the web server. It logs each request in `requests`.
const CADDY: &str = "{
    admin off
    auto_https off
}
http://:8081 {
    root * web
    header Connection close
    file_server
    log {
        output file requests
    }
}
https://:8443 {
    tls cert.pem key.pem
    root * web
    file_server
    log {
        output file requests
    }
}
";

/// Starts the web server next to the targets, with the files of `web` and a self-signed certificate.
pub(super) fn serve(hosts: &mut TwoUplinks) {
    std::fs::write(hosts.dir.join("Caddyfile"), CADDY).expect("write");
    hosts.shell(
        Side::Server,
        &format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -keyout key.pem -out cert.pem \
             -days 10 -nodes -subj /CN={HOST} -addext subjectAltName=DNS:{HOST} 2> /dev/null
             openssl x509 -in cert.pem -pubkey -noout | openssl pkey -pubin -outform der \
             | openssl dgst -sha256 -binary | openssl base64 > pin"
        ),
    );
    let caddy = "caddy run --config Caddyfile --adapter caddyfile";
    hear(&hosts.program(Side::Server, caddy), "serving initial configuration");
}

/// Returns the requests that the server received, one JSON object each.
pub(super) fn requests(dir: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(dir.join("requests")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Programs that these tests need.
pub(super) const PROGRAMS: [&str; 3] = ["chromium", "caddy", "openssl"];

/// Returns a command that shows `url` and prints the page once it has loaded completely. `dir` contains the
/// certificate's pin and the browser's home.
pub(super) fn browse(dir: &Path, url: &str, flags: &str) -> String {
    let pin = std::fs::read_to_string(dir.join("pin")).expect("a pin");
    let profile = dir.join("profile");
    format!(
        "timeout 45 chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
         --disable-background-networking --disable-component-update --no-proxy-server --timeout=40000 \
         --user-data-dir={} --ignore-certificate-errors-spki-list={} {flags} --dump-dom {url} 2> browser.log",
        profile.display(),
        pin.trim()
    )
}

/// Returns a page with pictures from these URLs, each an SVG of some kilobytes. The title contains the number of
/// loaded pictures, their protocols, and the time until the `load` event.
pub(super) fn pictures(web: &Path, bases: impl Iterator<Item = String>) -> String {
    let mut text = String::from("<!doctype html><title>waiting</title><body>\n");
    for (number, base) in bases.enumerate() {
        let picture = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><!-- {number} {} --></svg>",
            "x".repeat(20_000)
        );
        std::fs::write(web.join(format!("{number}.svg")), picture).expect("write");
        writeln!(text, "<img src='{base}/{number}.svg'>").expect("text");
    }
    text.push_str(
        "<script>addEventListener('load', () => {
            const there = [...document.images].filter(i => i.complete && i.naturalWidth == 9).length;
            const by = new Set(performance.getEntriesByType('navigation')
                .concat(performance.getEntriesByType('resource')).map(e => e.nextHopProtocol).filter(p => p));
            document.title = `pictures ${there} by ${[...by]} after ${Math.round(performance.now())} ms`;
        })</script>",
    );
    text
}

/// Returns a page's title.
pub(super) fn title(dom: &str) -> &str {
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split('<').next());
    title.unwrap_or_else(|| panic!("no title: {dom}"))
}

/// Returns the URL of a page of the web server, with the target's address.
pub(super) fn plain(page: &str) -> String {
    format!("http://{TARGET_V4}:{PLAIN}/{page}")
}

/// Returns the errors that the browser logged.
pub(super) fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("browser.log")).unwrap_or_default()
}
