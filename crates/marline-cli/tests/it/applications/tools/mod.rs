//! Independent programs that found a fault or guard a promise best: NetworkManager beside `marline up`, vegeta through
//! the HTTP proxy, toxiproxy in front of the TCP carrier, a film and a page in Chromium. Needs root, for the hosts.
//!
//! ```text
//! sudo cargo xtask nightly tools     # installs them
//! ```

mod film;
mod load;
mod network_manager;
mod page;
mod toxiproxy;

use std::process::{Child, Stdio};

use super::{Side, TwoUplinks};

/// Starts a command on the user's machine.
fn spawn(hosts: &TwoUplinks, text: &str) -> Child {
    let mut command = hosts.command(text);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    hosts.net.spawn(Side::Client, &mut command).expect("spawn")
}
