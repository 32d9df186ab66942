//! Variants in the comparison.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::experiment::Stack;

/// A stack and the paths it uses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Contestant {
    /// The kernel's TCP on the first path alone.
    FirstPath,
    /// The kernel's TCP on the second path alone.
    SecondPath,
    /// One TCP connection per path, with all data sent on both. The first arrival counts, as with an ideal redundant
    /// scheduler.
    Duplicate,
    /// The kernel's Multipath TCP.
    Kernel,
    /// Marline with its defaults.
    Marline,
    /// Marline with the best policies for the row.
    Best,
}

impl Contestant {
    /// Name in files and tables.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Contestant::FirstPath => "first",
            Contestant::SecondPath => "second",
            Contestant::Duplicate => "duplicate",
            Contestant::Kernel => "kernel",
            Contestant::Marline => "marline",
            Contestant::Best => "best",
        }
    }

    /// Returns true if both ends are Marline's.
    #[must_use]
    pub const fn is_marline(self) -> bool {
        matches!(self, Contestant::Marline | Contestant::Best)
    }

    /// The variant's TCP stack.
    #[must_use]
    pub const fn stack(self) -> Stack {
        match self {
            Contestant::FirstPath | Contestant::SecondPath => Stack::Tcp,
            Contestant::Duplicate => Stack::Duplicate,
            Contestant::Kernel => Stack::Mptcp,
            Contestant::Marline | Contestant::Best => Stack::Live,
        }
    }

    /// Returns true for a reference, which needs fewer runs.
    #[must_use]
    pub const fn is_reference(self) -> bool {
        matches!(self, Contestant::FirstPath | Contestant::SecondPath)
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Contestant::FirstPath => "TCP, first path",
            Contestant::SecondPath => "TCP, second path",
            Contestant::Duplicate => "two TCP connections, first answer counts",
            Contestant::Kernel => "kernel MPTCP",
            Contestant::Marline => "Marline",
            Contestant::Best => "Marline, best policies",
        })
    }
}
