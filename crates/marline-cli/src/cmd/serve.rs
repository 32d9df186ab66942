//! `marline serve`: a Multipath TCP front end for a TCP service.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use marline::Stream;
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
    /// TOML file whose keys are the names of these flags; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// All other options.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// A front that has completed its privileged setup.
#[derive(Debug)]
pub struct Prepared {
    plan: ServePlan,
    settings: Settings<ServeOptions>,
}

/// Completes the privileged setup, then drops the privileges.
///
/// # Errors
/// An error message for the user.
pub fn prepare(args: Args) -> anyhow::Result<Prepared> {
    let (settings, mut plan) = Settings::read(args.options, args.config)?;
    plan.carrier.clone().listen(&mut plan.network)?;
    Ok(Prepared { plan, settings })
}

/// Runs the front.
///
/// # Errors
/// An error message for the user.
pub async fn run(prepared: Prepared) -> anyhow::Result<ExitCode> {
    let Prepared { plan, settings } = prepared;
    let (stopper, signals) = (Stopper::default(), Signals::new()?);
    let front = ServiceFront::new(plan.backend, plan.header, plan.limits, stopper.listen());
    let listener = plan.network.bind().await?;
    let handle = Arc::new(ServerHandle { listener: listener.clone(), role: "serve", proxy: None });
    let _watched = watched(&plan.runtime, handle).await?;
    for address in listener.local_addrs() {
        println!("listening on {address}");
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
    let apply = |plan: &ServePlan| {
        front.change(plan.backend.clone(), plan.header, plan.limits);
        Ok(())
    };
    stopper.run_until_signal(signals, &mut Live { settings, apply }, work).await?;
    listener.drained(FAREWELL).await;
    Ok(ExitCode::SUCCESS)
}
