//! `marline server`: the server side of the proxy.

mod listing;
mod setup;

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use marline::advanced::ResetSeed;
use marline_proxy::credentials::{Store, Suspensions};
use marline_proxy::invite::Invite;
use marline_proxy::invite::destination::Destination;
use marline_proxy::ledger::Ledger;
use marline_proxy::private_file;
use marline_proxy::server::Server;
use marline_proxy::shutdown::Stopper;
use marline_proxy::signals::Signals;
use marline_proxy::tls::ServerKey;
use tokio::sync::Notify;

use super::accepting::accept;
use super::client_network::CLOSING_TIME;
use super::monitor::print;
use super::settings::{LiveSettings, Settings};
use super::watched::with_inherited_watchers;
use crate::config::server::{ServerOptions, ServerPlan};
use crate::control::ServerHandle;
use crate::memory;
use crate::native::capabilities_for_ports;
use crate::qr::invite_code;
use crate::reload::reloads;
use crate::succession::{Successor, begin, upgrades};

/// Arguments of `marline server`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// TOML file whose keys are the names of these flags; flags override it
    #[arg(long, value_name = "FILE", default_value = "marline-server.toml", global = true)]
    pub config: PathBuf,
    /// Create the configuration file, the keys and the first client, and print the client's invite
    #[arg(long)]
    pub init: bool,
    /// Name of the first client
    #[arg(long, value_name = "NAME", default_value = "first", requires = "init")]
    pub client: String,
    /// Write the invite to this new file, mode 0600, instead of printing it
    #[arg(long, value_name = "FILE", requires = "init")]
    pub invite_out: Option<PathBuf>,
    /// Also print the invite as a QR code for a phone's camera; keep it as secret as the invite
    #[arg(long, requires = "init")]
    pub qr: bool,
    /// All other options.
    #[command(flatten)]
    pub options: ServerOptions,
    /// Management of clients.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Administrative subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Invite, list and revoke clients (takes effect on a running server within a second)
    #[command(subcommand)]
    Credential(Credential),
}

/// Commands on clients.
#[derive(Debug, clap::Subcommand)]
pub enum Credential {
    /// Create a client and print its invite (it cannot be shown again)
    Add {
        /// Name of the client: letters, digits, '-', '_', '.'
        name: String,
        /// Write the invite to this new file, mode 0600, instead of printing it
        #[arg(long, value_name = "FILE")]
        invite_out: Option<PathBuf>,
        /// Also print the invite as a QR code for a phone's camera; keep it as secret as the invite
        #[arg(long)]
        qr: bool,
    },
    /// List the clients, with their last connection and usage
    List {
        /// Print one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Revoke a client; its connections end
    Revoke {
        /// Name of the client
        name: String,
    },
}

/// A server that has completed its privileged setup.
#[derive(Debug)]
pub struct PreparedServer {
    plan: ServerPlan,
    settings: Settings<ServerOptions>,
    successor: Option<Successor>,
}

impl PreparedServer {
    /// Returns the number of threads that share the port, with one driver each.
    #[must_use]
    pub const fn shards(&self) -> usize {
        self.plan.shards
    }
}

/// Returns the server to run, if any. All other commands are complete when this returns.
///
/// Completes the privileged setup, then drops the privileges.
///
/// # Errors
/// An error message for the user.
pub fn prepare(args: Args) -> anyhow::Result<Option<PreparedServer>> {
    let file = &args.config;
    if args.init {
        let (client, options) = (&args.client, args.options);
        let destination = Destination::open(args.invite_out)?;
        let invite = destination.remove_on_failure(setup::init(file, options, client))?;
        eprintln!("created {}; start the server with", file.display());
        eprintln!("    marline server --config {}", file.display());
        hand_over(destination, &invite, client, args.qr)?;
        return Ok(None);
    }
    if !file.exists() {
        anyhow::bail!(
            "{} not found: `marline server --init --config {} --listen ADDR:PORT` creates it",
            file.display(),
            file.display()
        );
    }
    if let Some(Command::Credential(change)) = args.command {
        let options = args.options.with_defaults(ServerOptions::from_file(file)?);
        credential(file, options, change)?;
        return Ok(None);
    }
    let (settings, mut plan) = Settings::read(args.options, Some(args.config))?;
    private_file::check_mode(&plan.key_file)?;
    let successor = Successor::receive_handover(&mut plan.network)?;
    plan.carrier.clone().listen(
        &mut plan.network,
        false,
        capabilities_for_ports(plan.ports.clone()),
    )?;
    Ok(Some(PreparedServer { plan, settings, successor }))
}

fn credential(file: &Path, options: ServerOptions, change: Credential) -> anyhow::Result<()> {
    match change {
        Credential::Add { name, invite_out, qr } => {
            let destination = Destination::open(invite_out)?;
            let invite = destination.remove_on_failure(setup::add_client(file, &options, &name))?;
            hand_over(destination, &invite, &name, qr)?;
        }
        Credential::List { json } => {
            let listed = listing::list(file, options)?;
            let text = if json { listed.to_json()? } else { listed.to_text(SystemTime::now()) };
            // A closed output is ignored.
            let _ = print(&text);
        }
        Credential::Revoke { name } => {
            let store =
                Store::in_file(options.into_effective(file).credentials_file.unwrap_or_default());
            store.change(|credentials| credentials.revoke(&name))?;
            eprintln!("revoked {name:?}");
        }
    }
    Ok(())
}

/// Writes the invite to its destination and, if requested, its QR code to standard output.
fn hand_over(
    destination: Destination,
    invite: &Invite,
    client: &str,
    qr: bool,
) -> anyhow::Result<()> {
    destination.write_invite(invite, client)?;
    if qr {
        // A closed output is ignored.
        let _ = print(&invite_code(&invite.to_word())?);
    }
    Ok(())
}

/// Runs the server.
///
/// # Errors
/// An error message for the user.
pub async fn run(prepared: Option<PreparedServer>) -> anyhow::Result<ExitCode> {
    let Some(PreparedServer { plan, settings, mut successor }) = prepared else {
        return Ok(ExitCode::SUCCESS);
    };
    let key = ServerKey::load(&plan.key_file)?;
    let acceptor = key.acceptor()?;
    let mut network = plan.network;
    // The seed lets a server prove, after a crash and restart, that it no longer knows a connection.
    network.reset_seed(reset_seed(&key, network.advertised()));
    let again = Arc::new(Notify::new());
    let suspensions = Suspensions::default();
    let credentials = Store::in_file(plan.credentials_file)
        .watch_file(Arc::clone(&again), suspensions.clone())?;
    if credentials.borrow().list().is_empty() {
        tracing::warn!("no clients yet: `marline server credential add NAME` creates an invite");
    }
    let (stopper, signals) = (Stopper::default(), Signals::new()?);
    memory::set_limit(plan.runtime.memory);
    let (budget, stop) = (memory::budget().clone(), stopper.listen());
    let server = Server::with_budget(budget, acceptor, credentials, plan.rules, plan.limits, stop);
    let server = server.advertise(network.advertised().to_vec());
    server.allow_remote(plan.remote_rules);
    server.offer_datagrams(plan.datagrams, plan.udp_filtering);
    server.deadlines().change(plan.deadlines);
    server.use_ledger(Ledger::open(plan.state_file), suspensions);
    server.allow_clients(plan.allowances);
    let listener = network.bind().await?;
    listener.set_memory_account(server.unauthenticated_account());
    let server = Arc::new(server);
    let ((ask, upgrades), (reload, reloads)) = (upgrades(), reloads());
    let handle = ServerHandle::new(listener.clone(), Some(Arc::clone(&server)), ask, reload);
    let further = successor.as_mut().map(|s| std::mem::take(&mut s.further)).unwrap_or_default();
    let watched = with_inherited_watchers(&plan.runtime, Arc::new(handle), further)?;
    begin(successor, &listener)?;
    for address in listener.local_addrs() {
        let _ = print(&format!("listening on {address}\n"));
    }
    let serving = Arc::clone(&server);
    let work = accept(listener.clone(), stopper.listen(), move |stream, peer| {
        let server = Arc::clone(&serving);
        async move { server.serve(stream, peer.ip()).await }
    });
    let upgrade_limit = Cell::new(plan.upgrade_limit);
    let apply = |plan: &ServerPlan| {
        // Everything that may fail comes first.
        let shown = watched.prepare(&plan.runtime)?;
        listener.set_transport(plan.network.get_transport());
        server.offer_datagrams(plan.datagrams.clone(), plan.udp_filtering);
        server.deadlines().change(plan.deadlines.clone());
        server.allow_clients(plan.allowances.clone());
        upgrade_limit.set(plan.upgrade_limit);
        server.change(plan.rules.clone(), plan.limits.per_client);
        server.allow_remote(plan.remote_rules.clone());
        again.notify_one();
        memory::set_limit(plan.runtime.memory);
        watched.commit(shown);
        Ok(())
    };
    let mut live = LiveSettings::new(settings, reloads, apply);
    tokio::select! {
        ended = stopper.run_until_signal(signals, &mut live, work) => ended?,
        () = upgrades.serve(&listener, &stopper, &watched, &upgrade_limit) => {}
        () = server.run_account_updates() => {}
    }
    listener.drained(CLOSING_TIME).await;
    server.close_ledger().await;
    Ok(ExitCode::SUCCESS)
}

/// Returns the secret that authenticates resets. It is derived from the key and therefore outlives the process.
/// Members of a fleet share a key and perhaps an address, but must not reset each other's connections, so it also
/// depends on the member's own addresses.
fn reset_seed(key: &ServerKey, own: &[SocketAddr]) -> ResetSeed {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.pkcs8());
    let mut what = b"Marline server: seed of carrier resets".to_vec();
    for address in own {
        what.extend_from_slice(format!(" {address}").as_bytes());
    }
    let tag = ring::hmac::sign(&key, &what);
    let mut seed = [0; 32];
    seed.copy_from_slice(tag.as_ref());
    ResetSeed::new(seed)
}
