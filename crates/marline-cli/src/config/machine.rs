//! Configuration of `marline up` as a whole: a client's, and what of the machine's traffic goes through it.

use std::path::Path;

use anyhow::bail;
use marline_tun::exceptions::Exceptions;
use marline_tun::machine::routing::RoutingSettings;

use super::client::{ClientOptions, ClientPlan, Route};
use super::shared::Layer;
use super::up::UpOptions;
use crate::native::CarrierPlan;

/// Options of `marline up`: a client's, and what of the machine's traffic it takes.
#[derive(Clone, Debug, Default)]
pub struct MachineOptions {
    /// Those of its client.
    pub options: ClientOptions,
    /// What it takes.
    pub up: UpOptions,
}

/// A tunnel for a machine, as configured.
#[derive(Debug)]
pub struct MachinePlan {
    /// Its client.
    pub client: ClientPlan,
    /// What is led where.
    pub routing: RoutingSettings,
    /// And what is not.
    pub exceptions: Exceptions,
}

impl MachineOptions {
    /// Merges file and flags. What a client does besides is left to `marline client`, which reads the same file.
    ///
    /// # Errors
    /// Errors in the file, with their place.
    pub fn with_file(self, file: Option<&Path>) -> anyhow::Result<MachineOptions> {
        let mut options = self.options.with_file(file)?.without_ports();
        let up = self.up.over(std::mem::take(&mut options.up));
        Ok(MachineOptions { options, up })
    }

    /// All of them with the defaults filled in, as a file has them.
    #[must_use]
    pub fn effective(self) -> ClientOptions {
        ClientOptions { up: self.up, ..self.options.effective() }
    }

    /// What is led where, without a client.
    ///
    /// # Errors
    /// Contradictory options.
    pub fn routing(self) -> anyhow::Result<RoutingSettings> {
        Ok(self.up.plan()?.0)
    }

    /// The settings.
    ///
    /// # Errors
    /// Contradictory or missing options.
    pub fn plan(self) -> anyhow::Result<MachinePlan> {
        let client = self.options.plan()?;
        if matches!(client.route, Route::Direct) {
            bail!("--direct has no server to go through: marline up needs one");
        }
        if !matches!(client.carrier, CarrierPlan::Auto | CarrierPlan::Udp | CarrierPlan::Tcp) {
            bail!("marline up reaches the server by --carrier auto, udp or tcp");
        }
        let (routing, exceptions) = self.up.plan()?;
        Ok(MachinePlan { client, routing, exceptions })
    }
}
