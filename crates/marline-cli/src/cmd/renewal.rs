//! Replacement of the tunnel through a server when a reload changes the invite or the mode.

use std::cell::RefCell;
use std::sync::Arc;

use anyhow::bail;
use marline::Client;
use marline::datagrams::LaneConfig;
use marline_proxy::client::current::Current;
use marline_proxy::client::dialer::{Dialer, NameLookup};
use marline_proxy::client::tunnel::{Timeouts, Tunnel};
use marline_proxy::deadlines::Deadlines;
use marline_proxy::invite::Invite;
use marline_proxy::tls::connector;
use tokio::sync::watch;

use super::client_network::CurrentTunnel;
use crate::config::client::{ClientPlan, Route};

/// Final step of a change, which cannot fail.
pub(super) type Step<'a> = Box<dyn FnOnce() + 'a>;

/// Settings from which a tunnel is created.
#[derive(PartialEq)]
struct TunnelSettings {
    invite: Invite,
    /// Number of connections that are kept ready.
    warm: usize,
    behavior: String,
}

impl TunnelSettings {
    /// Returns the settings in this plan, or `None` if the plan uses no server.
    fn from_plan(plan: &ClientPlan) -> Option<TunnelSettings> {
        let Route::Through(invite) = &plan.route else { return None };
        let (invite, behavior) = (invite.clone(), plan.behavior.clone());
        Some(TunnelSettings { invite, warm: plan.warm, behavior })
    }
}

/// Tunnel through a server, which can be replaced.
pub(super) struct Renewal<'a> {
    client: &'a Client,
    deadlines: Deadlines,
    names: NameLookup,
    pub(super) way: CurrentTunnel,
    transport: &'static str,
    used: RefCell<TunnelSettings>,
    /// Settings for new datagram lanes; `None` if the carrier does not support lanes.
    lanes: Option<watch::Sender<LaneConfig>>,
}

impl<'a> Renewal<'a> {
    /// Creates the first tunnel. `deadlines` are the latency requirements of applications, which can change without a
    /// new tunnel.
    ///
    /// # Errors
    /// There is no server, or the invite is not usable.
    pub(super) fn start(
        client: &'a Client,
        deadlines: &Deadlines,
        plan: &ClientPlan,
    ) -> anyhow::Result<Renewal<'a>> {
        let Some(used) = TunnelSettings::from_plan(plan) else { bail!("no server configured") };
        let transport = plan.carrier.transport();
        let dialer = dialer(client, &used.invite, &plan.names, transport);
        let way = tunnel(dialer, &used.invite, deadlines, used.warm)?;
        let way = Arc::new(Current::new(way));
        let used = RefCell::new(used);
        let lanes = plan.datagrams.clone().map(watch::Sender::new);
        let (deadlines, names) = (deadlines.clone(), plan.names.clone());
        Ok(Renewal { client, deadlines, names, way, transport, used, lanes })
    }

    /// Returns the receiver of the settings for new lanes, or `None` if the carrier does not support lanes.
    pub(super) fn lanes(&self) -> Option<watch::Receiver<LaneConfig>> {
        self.lanes.as_ref().map(watch::Sender::subscribe)
    }

    /// Prepares the changes of the tunnel.
    ///
    /// # Errors
    /// The invite is not usable. Nothing has changed.
    pub(super) fn prepare(&self, plan: &ClientPlan) -> anyhow::Result<Step<'_>> {
        let wanted =
            TunnelSettings::from_plan(plan).filter(|wanted| *wanted != *self.used.borrow());
        if let Some(wanted) = &wanted {
            // Creating the tunnel fails here if it would fail below.
            connector(wanted.invite.pin)?;
        }
        let config = plan.datagrams.clone();
        Ok(Box::new(move || {
            if let (Some(lanes), Some(config)) = (&self.lanes, config) {
                lanes.send_replace(config);
            }
            if let Some(wanted) = wanted {
                self.replace(wanted);
            }
        }))
    }

    /// Replaces the tunnel. Also needed for other connection settings, because waiting connections have the old ones.
    fn replace(&self, wanted: TunnelSettings) {
        let dialer = dialer(self.client, &wanted.invite, &self.names, self.transport);
        // The rejection concerned the previous server or the previous invite.
        self.client.set_rejection(None);
        match tunnel(dialer, &wanted.invite, &self.deadlines, wanted.warm) {
            Ok(tunnel) => self.way.replace(tunnel).close(),
            Err(error) => return tracing::error!("keeping current server: {error:#}"),
        }
        if wanted.invite != self.used.borrow().invite {
            tracing::info!("invite changed; new connections use it");
        }
        self.used.replace(wanted);
    }
}

/// Connects to the server of this invite.
pub(super) fn dialer(
    client: &Client,
    invite: &Invite,
    names: &NameLookup,
    transport: &'static str,
) -> Dialer {
    Dialer::new(client.clone(), invite.servers.clone(), transport).resolving(names.clone())
}

/// Returns a tunnel to the server of this invite.
///
/// # Errors
/// The invite is not usable.
pub(super) fn tunnel(
    dialer: Dialer,
    invite: &Invite,
    deadlines: &Deadlines,
    warm: usize,
) -> anyhow::Result<Arc<Tunnel<Dialer>>> {
    let (token, patience) = (invite.token.clone(), Timeouts::default());
    Tunnel::with_deadlines(dialer, invite.pin, token, patience, deadlines.clone(), warm)
}
