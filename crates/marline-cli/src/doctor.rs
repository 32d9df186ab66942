//! Diagnosis of this machine by active checks.
//!
//! Each check uses the feature itself where this has no side effects. Native TCP, for example, is checked by
//! connections over loopback between this process and the kernel's own TCP, one with plain TCP and one with
//! Multipath TCP. System settings that degrade performance are read and reported. Nothing is changed, and no packet
//! leaves the machine unless a server is named.

mod candidate;
pub mod invite;
mod native;
pub mod path;
mod settings;

use std::net::{Ipv4Addr, UdpSocket};

use marline_io::{Interfaces, PathSpec};
use serde::Serialize;

/// Result of a check.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingStatus {
    /// The feature works.
    Works,
    /// The feature works but could work better, or the check is inconclusive.
    Note,
    /// The feature does not work.
    Fails,
}

/// A check and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Subject of the check.
    pub what: &'static str,
    /// Result of the check.
    #[serde(rename = "verdict")]
    pub status: FindingStatus,
    /// Observation and remedy.
    pub text: String,
}

/// State of a path to a server, as in `marline status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathVerdict {
    /// The path as given.
    pub path: String,
    /// `usable` or `unreachable`.
    pub state: &'static str,
    /// Cause if the path is not usable, or an additional remark.
    pub cause: Option<String>,
}

impl Finding {
    fn passed(what: &'static str, text: impl Into<String>) -> Finding {
        Finding { what, status: FindingStatus::Works, text: text.into() }
    }

    /// Returns the finding that a stored invite cannot be used.
    #[must_use]
    pub fn unusable_invite(error: &anyhow::Error) -> Finding {
        Finding::fails("invite", format!("{error:#}"))
    }

    fn note(what: &'static str, text: impl Into<String>) -> Finding {
        Finding { what, status: FindingStatus::Note, text: text.into() }
    }

    fn fails(what: &'static str, text: impl Into<String>) -> Finding {
        Finding { what, status: FindingStatus::Fails, text: text.into() }
    }
}

/// Returns all findings.
pub async fn examine() -> Vec<Finding> {
    let mut findings = vec![udp(), paths()];
    findings.extend(native::examine().await);
    findings.push(settings::tun());
    findings.extend(settings::examine());
    findings
}

fn udp() -> Finding {
    const WHAT: &str = "UDP sockets";
    match UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) {
        Ok(_) => Finding::passed(
            WHAT,
            "can be opened; `marline doctor --invite-file` or `--server` checks whether the networks \
             let UDP through",
        ),
        Err(error) => Finding::fails(WHAT, format!("cannot open a UDP socket: {error}")),
    }
}

fn paths() -> Finding {
    const WHAT: &str = "paths";
    let interfaces = match Interfaces::now() {
        Ok(interfaces) => interfaces,
        Err(error) => return Finding::fails(WHAT, format!("cannot list interfaces: {error}")),
    };
    let found = PathSpec::defaults(&interfaces);
    let names: Vec<String> = found.iter().map(|(spec, _)| spec.to_string()).collect();
    match names.len() {
        0 => Finding::note(WHAT, "no interface has a default route: a client must name its paths"),
        1 => Finding::note(
            WHAT,
            format!("only {} has a default route: a client has one path", names[0]),
        ),
        _ => Finding::passed(WHAT, format!("by default a client uses {}", names.join(", "))),
    }
}
