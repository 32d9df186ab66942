//! Systems under comparison.

use marline_lab::experiment::file::Lane;
use marline_lab::experiment::{Stack, Variant};
use marline_lab::wifi_mobility::PATHS;

use crate::plain::mptcp;

/// A configuration for WiFi and LTE.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct System {
    stack: Stack,
    variant: Variant,
    /// True if the requirements apply to this system.
    pub(super) judged: bool,
}

impl System {
    fn new(stack: Stack, variant: Variant) -> System {
        System { stack, variant, judged: false }
    }

    pub(super) fn name(&self) -> &str {
        &self.variant.name
    }

    pub(super) fn lane(&self) -> Lane {
        Lane { stack: self.stack, variant: self.variant.clone() }
    }

    /// True if the client is Marline's.
    pub(super) fn is_marline_client(&self) -> bool {
        matches!(self.stack, Stack::Live | Stack::ToKernel)
    }

    /// True if one end is a stock kernel and the other is Marline.
    pub(super) fn is_mixed(&self) -> bool {
        matches!(self.stack, Stack::ToKernel | Stack::FromKernel)
    }
}

fn with_backup(variant: Variant) -> Variant {
    Variant { backup: vec![PATHS[1].to_owned()], ..variant }
}

/// The kernel's Multipath TCP with LTE as backup. It is the reference of several requirements.
pub(super) fn kernel_backup() -> System {
    System::new(Stack::Mptcp, with_backup(Variant::new("kernel MPTCP, backup flag")))
}

/// The kernel's Multipath TCP with LTE as a regular path.
pub(super) fn kernel_mesh() -> System {
    System::new(Stack::Mptcp, Variant::new("kernel MPTCP, full mesh"))
}

fn kernel_wifi() -> System {
    System::new(Stack::Tcp, Variant::single_path("kernel TCP, WiFi", PATHS[0]))
}

/// Marline with the kernel's scheduler of the time. Only the timer reinjects data.
pub(super) fn vanilla_mesh() -> System {
    System::new(Stack::Live, mptcp("vanilla, full mesh").scheduler("lowest-rtt"))
}

pub(super) fn vanilla_backup() -> System {
    let variant = mptcp("vanilla, backup flag").scheduler("lowest-rtt");
    let path_manager = Some("backup".to_owned());
    System::new(Stack::Live, with_backup(Variant { path_manager, ..variant }))
}

fn default_system() -> System {
    System::new(Stack::Live, Variant::new("Marline as shipped"))
}

/// MultiMob at both ends. LTE has the backup flag and is opened on demand.
fn multimob(stack: Stack, name: &str, mode: &str) -> System {
    System::new(stack, with_backup(Variant::new(name).mode(mode)))
}

fn seeds() -> System {
    multimob(Stack::Live, "MultiMob, authors' parameters", "multimob")
}

fn tuned() -> System {
    System { judged: true, ..multimob(Stack::Live, "MultiMob, tuned", "interactive") }
}

/// MultiMob at one end, a stock kernel at the other.
fn mixed_systems() -> [System; 2] {
    [
        multimob(Stack::ToKernel, "MultiMob, tuned, to a kernel", "interactive"),
        multimob(Stack::FromKernel, "kernel MPTCP to MultiMob's server", "interactive"),
    ]
}

/// Systems of the walks.
pub(super) fn walkers() -> Vec<System> {
    let others = [
        kernel_backup(),
        kernel_mesh(),
        kernel_wifi(),
        vanilla_mesh(),
        vanilla_backup(),
        default_system(),
    ];
    [seeds(), tuned()].into_iter().chain(mixed_systems()).chain(others).collect()
}

/// Systems of the runs in range (which measure the cost of LTE) and of the downloads.
pub(super) fn other_systems() -> Vec<System> {
    vec![seeds(), tuned(), kernel_backup(), kernel_mesh(), vanilla_mesh(), vanilla_backup()]
}
