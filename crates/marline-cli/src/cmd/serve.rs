//! `marline serve`: a front for a service.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use marline::{Listener, Stream};
use marline_proxy::serve::ServiceFront;
use marline_proxy::shutdown::Stopper;
use marline_proxy::signals::Signals;

use super::accepting::accept;
use super::client::FAREWELL;
use super::settings::{Live, Settings};
use super::watched::watched;
use crate::config::serve::{ServeOptions, ServePlan};
use crate::control::ServerHandle;

/// Arguments of `marline serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A TOML file whose keys are these flags' names; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Everything else.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// A front that has all it needs privileges for.
#[derive(Debug)]
pub struct Prepared {
    plan: ServePlan,
    settings: Settings<ServeOptions>,
}

/// Does what needs privileges, and lets go of them.
///
/// # Errors
/// What went wrong, in words for the user.
pub fn prepare(args: Args) -> anyhow::Result<Prepared> {
    let (settings, mut plan) = Settings::read(args.options, args.config)?;
    plan.carrier.clone().listen(&mut plan.network)?;
    Ok(Prepared { plan, settings })
}

/// Runs it.
///
/// # Errors
/// What went wrong, in words for the user.
pub async fn run(prepared: Prepared) -> anyhow::Result<ExitCode> {
    let Prepared { plan, settings } = prepared;
    let (stopper, signals) = (Stopper::default(), Signals::new()?);
    let front = ServiceFront::new(plan.backend, plan.header, plan.limits, stopper.listen());
    let listener = Listener::bind(plan.network).await?;
    let handle = Arc::new(ServerHandle { listener: listener.clone(), role: "serve" });
    let _watched = watched(&plan.runtime, handle).await?;
    for address in listener.local_addrs() {
        println!("listening on {address}");
    }
    let front = Arc::new(front);
    let anywhere = listener.local_addrs()[0];
    let serving = Arc::clone(&front);
    let work = accept(listener.clone(), stopper.listen(), move |stream: Stream, peer| {
        let front = Arc::clone(&serving);
        async move {
            let first = stream.info().and_then(|info| Some(info.subflows.first()?.path.local));
            front.serve(stream, peer, first.unwrap_or(anywhere)).await;
        }
    });
    let apply = |plan: &ServePlan| {
        front.change(plan.backend.clone(), plan.header, plan.limits);
        Ok(())
    };
    stopper.run_until_signal(signals, &mut Live { settings, apply }, work).await?;
    listener.drained(FAREWELL).await;
    Ok(ExitCode::SUCCESS)
}
