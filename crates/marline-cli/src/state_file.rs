//! Paths of a client's state file and of the log of `marline run`. A server's files are next to its configuration.

use std::path::PathBuf;

const NAME: &str = "client.state";
const LOG: &str = "run.log";

/// Returns the log file used while a program of `marline run` has the terminal.
#[must_use]
pub fn run_log_path() -> PathBuf {
    client_state_file().with_file_name(LOG)
}

/// Returns the state file of a client: in systemd's state directory if there is one, or else in the user's or root's.
#[must_use]
pub fn client_state_file() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(given) = variable("STATE_DIRECTORY") {
        // systemd separates several directories by colons.
        let first = given.to_string_lossy().split(':').next().map(PathBuf::from);
        return first.unwrap_or_default().join(NAME);
    }
    let directory = match (variable("XDG_STATE_HOME"), variable("HOME")) {
        (Some(state), _) => PathBuf::from(state).join("marline"),
        (None, Some(_)) if rustix::process::getuid().is_root() => PathBuf::from("/var/lib/marline"),
        (None, Some(home)) => PathBuf::from(home).join(".local/state/marline"),
        (None, None) => PathBuf::from("/var/lib/marline"),
    };
    directory.join(NAME)
}
