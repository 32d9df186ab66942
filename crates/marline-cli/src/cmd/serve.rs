//! `marline serve`: a Multipath TCP front end for a TCP service.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use marline::Stream;
use marline_proxy::serve::ServiceFront;
use marline_proxy::shutdown::Stopper;
use marline_proxy::signals::Signals;

use super::accepting::accept;
use super::client_network::CLOSING_TIME;
use super::monitor::print;
use super::settings::{LiveSettings, Settings};
use super::watched::with_inherited_watchers;
use crate::config::serve::{ServeOptions, ServePlan};
use crate::control::ServerHandle;
use crate::memory;
use crate::native::capabilities_for_ports;
use crate::reload::reloads;
use crate::succession::{Successor, begin, upgrades};

/// Arguments of `marline serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// TOML file whose keys are the names of these flags; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// All other options.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// A front that has completed its privileged setup.
#[derive(Debug)]
pub struct PreparedFront {
    plan: ServePlan,
    settings: Settings<ServeOptions>,
    successor: Option<Successor>,
}

impl PreparedFront {
    /// Returns the number of threads that share the ports.
    #[must_use]
    pub const fn shards(&self) -> usize {
        self.plan.shards
    }
}

/// Completes the privileged setup, then drops the privileges.
///
/// # Errors
/// An error message for the user.
pub fn prepare(args: Args) -> anyhow::Result<PreparedFront> {
    let (settings, mut plan) = Settings::read(args.options, args.config)?;
    let successor = Successor::receive_handover(&mut plan.network)?;
    let shown = [plan.runtime.metrics, plan.runtime.dashboard].into_iter().flatten();
    let kept = capabilities_for_ports(shown.map(|address| address.port()));
    plan.carrier.clone().listen(&mut plan.network, plan.no_offload, kept)?;
    Ok(PreparedFront { plan, settings, successor })
}

/// Runs the front.
///
/// # Errors
/// An error message for the user.
pub async fn run(prepared: PreparedFront) -> anyhow::Result<ExitCode> {
    let PreparedFront { plan, settings, mut successor } = prepared;
    let (stopper, signals) = (Stopper::default(), Signals::new()?);
    memory::set_limit(plan.runtime.memory);
    let front = ServiceFront::new(plan.backend, plan.header, plan.limits, stopper.listen())
        .charge_to(memory::process_account());
    let listener = plan.network.bind().await?;
    listener.set_memory_account(memory::process_account());
    let ((ask, upgrades), (reload, reloads)) = (upgrades(), reloads());
    let handle = ServerHandle::new(listener.clone(), None, ask, reload);
    let further = successor.as_mut().map(|s| std::mem::take(&mut s.further)).unwrap_or_default();
    let watched = with_inherited_watchers(&plan.runtime, Arc::new(handle), further)?;
    begin(successor, &listener)?;
    for address in listener.local_addrs() {
        let _ = print(&format!("listening on {address}\n"));
    }
    let front = Arc::new(front);
    let anywhere = listener.local_addr();
    let serving = Arc::clone(&front);
    let work = accept(listener.clone(), stopper.listen(), move |stream: Stream, peer| {
        let front = Arc::clone(&serving);
        async move {
            let local = stream.local_addr().unwrap_or(anywhere);
            front.serve(stream, peer, local).await;
        }
    });
    let upgrade_limit = Cell::new(plan.upgrade_limit);
    let apply = |plan: &ServePlan| {
        // Everything that may fail comes first.
        let shown = watched.prepare(&plan.runtime)?;
        listener.set_transport(plan.network.get_transport());
        upgrade_limit.set(plan.upgrade_limit);
        front.change(plan.backend.clone(), plan.header, plan.limits);
        memory::set_limit(plan.runtime.memory);
        watched.commit(shown);
        Ok(())
    };
    let mut live = LiveSettings::new(settings, reloads, apply);
    tokio::select! {
        ended = stopper.run_until_signal(signals, &mut live, work) => ended?,
        () = upgrades.serve(&listener, &stopper, &watched, &upgrade_limit) => {}
    }
    listener.drained(CLOSING_TIME).await;
    Ok(ExitCode::SUCCESS)
}
