//! nginx with the minimal configuration of a test or a bench.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{Beside, listens};
use marline_testkit::free_address;

/// Runs nginx in one process, with these modules and this configuration. It ends when the result is dropped. Its
/// files are in `dir`, under `name`.
pub(crate) fn nginx(program: &Path, dir: &Path, name: &str, modules: &str, text: &str) -> Beside {
    let file = dir.join(format!("{name}.conf"));
    let text = format!(
        "{modules}
        daemon off; master_process off; pid {name}.pid; error_log stderr crit;
        events {{ worker_connections 4096; }}
        {text}"
    );
    std::fs::write(&file, text).expect("a file");
    Beside::start(Command::new(program).args(["-p", ".", "-c"]).arg(&file).current_dir(dir))
}

/// Returns a web server on loopback with one page, and its address.
pub(crate) fn page(program: &Path, dir: &Path, body: &str) -> (Beside, SocketAddr) {
    let address = free_address();
    let text = format!(
        "http {{ access_log off; client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp;
        uwsgi_temp_path tmp; scgi_temp_path tmp; keepalive_requests 1000000000;
        server {{ listen {address} backlog=4096; location / {{ return 200 {body}; }} }} }}"
    );
    let web = nginx(program, dir, "web", "", &text);
    listens(address);
    (web, address)
}
