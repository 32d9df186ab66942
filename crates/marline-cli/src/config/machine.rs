//! Configuration of `marline up` as a whole: the client, and the traffic that uses the tunnel.

use std::path::Path;

use anyhow::bail;
use marline_tun::exceptions::Exceptions;
use marline_tun::machine::routing::RoutingSettings;

use super::client::{ClientOptions, ClientPlan, Route};
use super::shared::Layer;
use super::up::UpOptions;
use crate::native::CarrierPlan;

/// Options of `marline up`: those of its client, and those that select the machine's traffic.
#[derive(Clone, Debug, Default)]
pub struct MachineOptions {
    /// Options of the client.
    pub options: ClientOptions,
    /// Selection of traffic.
    pub up: UpOptions,
}

/// Complete configuration of a machine's tunnel.
#[derive(Debug)]
pub struct MachinePlan {
    /// Configuration of the client.
    pub client: ClientPlan,
    /// Routing of traffic through the tunnel.
    pub routing: RoutingSettings,
    /// Exceptions to the routing.
    pub exceptions: Exceptions,
}

impl MachineOptions {
    /// Merges file and flags. Options that only `marline client` has, which reads the same file, are dropped.
    ///
    /// # Errors
    /// Errors in the file, with their location.
    pub fn with_file(self, file: Option<&Path>) -> anyhow::Result<MachineOptions> {
        let mut options = self.options.with_file(file)?.without_ports();
        let up = self.up.with_defaults(std::mem::take(&mut options.up));
        Ok(MachineOptions { options, up })
    }

    /// Returns these options with the defaults filled in, as in a file.
    #[must_use]
    pub fn into_effective(self) -> ClientOptions {
        ClientOptions { up: self.up, ..self.options.into_effective() }
    }

    /// Returns only the routing of traffic through the tunnel.
    ///
    /// # Errors
    /// Contradictory options.
    pub fn routing(self) -> anyhow::Result<RoutingSettings> {
        Ok(self.up.plan()?.0)
    }

    /// Returns the complete configuration.
    ///
    /// # Errors
    /// Contradictory or missing options.
    pub fn plan(self) -> anyhow::Result<MachinePlan> {
        let client = self.options.plan()?;
        if matches!(client.route, Route::Direct) {
            bail!("`marline up` needs a server, and --direct uses none");
        }
        if !matches!(client.carrier, CarrierPlan::Auto | CarrierPlan::Udp | CarrierPlan::Tcp) {
            bail!("`marline up` needs --carrier auto, udp or tcp");
        }
        let (routing, exceptions) = self.up.plan()?;
        Ok(MachinePlan { client, routing, exceptions })
    }
}
