//! `marline server`: the proxy's far end.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use marline::Listener;

use super::accepting::accept;
use super::client::FAREWELL;
use super::watched::watched;
use crate::control::ServerHandle;
use crate::proxy::config::server::{ServerOptions, ServerPlan};
use crate::proxy::credentials::Store;
use crate::proxy::invite::Invite;
use crate::proxy::private_file;
use crate::proxy::server::{Server, setup};
use crate::proxy::shutdown::Stopper;
use crate::proxy::tls::ServerKey;

/// Arguments of `marline server`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A TOML file whose keys are these flags' names; flags override it
    #[arg(long, value_name = "FILE", default_value = "marline-server.toml", global = true)]
    pub config: PathBuf,
    /// Make that file, keys and the first client; print its invite
    #[arg(long)]
    pub init: bool,
    /// The first client's name
    #[arg(long, value_name = "NAME", default_value = "first", requires = "init")]
    pub client: String,
    /// Everything else.
    #[command(flatten)]
    pub options: ServerOptions,
    /// Clients.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What else a server's owner does.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Invite, list and revoke clients (a running server notices within a second)
    #[command(subcommand)]
    Credential(Credential),
}

/// What can be done to clients.
#[derive(Debug, clap::Subcommand)]
pub enum Credential {
    /// Make a client and print its invite, once
    Add {
        /// Its name: letters, digits, '-', '_', '.'
        name: String,
    },
    /// Print the clients' names
    List,
    /// Take a client away; its connections end
    Revoke {
        /// Its name
        name: String,
    },
}

/// What to run, if something is to be run: the other commands are done then.
///
/// Does what needs privileges, and lets go of them.
///
/// # Errors
/// What went wrong, in words for the user.
pub fn prepare(args: Args) -> anyhow::Result<Option<ServerPlan>> {
    let file = &args.config;
    if args.init {
        let invite = setup::init(file, args.options, &args.client)?;
        eprintln!("made {}; start the server with", file.display());
        eprintln!("    marline server --config {}", file.display());
        print_invite(&invite, &args.client);
        return Ok(None);
    }
    if !file.exists() {
        anyhow::bail!(
            "{} is not there: `marline server --init --config {} --listen ADDR:PORT` makes it",
            file.display(),
            file.display()
        );
    }
    let options = args.options.over(ServerOptions::from_file(file)?);
    if let Some(Command::Credential(change)) = args.command {
        credential(file, options, change)?;
        return Ok(None);
    }
    let mut plan = options.plan(file)?;
    private_file::check_mode(&plan.key_file)?;
    plan.carrier.clone().listen(&mut plan.network)?;
    Ok(Some(plan))
}

/// The word alone on standard output, so that it can be piped; what it is on standard error.
fn print_invite(invite: &Invite, client: &str) {
    eprintln!("the invite of the client {client:?} (secret: whoever has it is that client):");
    println!("{}", invite.to_word());
}

fn credential(file: &Path, options: ServerOptions, change: Credential) -> anyhow::Result<()> {
    match change {
        Credential::Add { name } => {
            print_invite(&setup::add_client(file, &options, &name)?, &name);
        }
        Credential::List => {
            let store = Store::at(options.effective(file).credentials_file.unwrap_or_default());
            for credential in store.load()?.list() {
                println!("{}\tcreated-unix-s {}", credential.name, credential.created_unix_s);
            }
        }
        Credential::Revoke { name } => {
            let store = Store::at(options.effective(file).credentials_file.unwrap_or_default());
            store.change(|credentials| credentials.revoke(&name))?;
            eprintln!("{name:?} is revoked");
        }
    }
    Ok(())
}

/// Runs it.
///
/// # Errors
/// What went wrong, in words for the user.
pub async fn run(plan: Option<ServerPlan>) -> anyhow::Result<ExitCode> {
    let Some(plan) = plan else { return Ok(ExitCode::SUCCESS) };
    let acceptor = ServerKey::load(&plan.key_file)?.acceptor()?;
    let credentials = Store::at(plan.credentials_file).follow()?;
    if credentials.borrow().list().is_empty() {
        tracing::warn!("no client is known: `marline server credential add NAME` makes an invite");
    }
    let stopper = Stopper::default();
    let server = Server::new(acceptor, credentials, plan.rules, plan.limits, stopper.listen());
    let listener = Listener::bind(plan.network).await?;
    let handle = Arc::new(ServerHandle { listener: listener.clone(), role: "server" });
    let _watched = watched(&plan.conduct, handle).await?;
    for address in listener.local_addrs() {
        println!("listening on {address}");
    }
    let server = Arc::new(server);
    let work = accept(listener.clone(), stopper.listen(), |stream, peer| {
        let server = Arc::clone(&server);
        async move { server.serve(stream, peer.ip()).await }
    });
    stopper.run_until_signal(plan.conduct.drain, work).await?;
    listener.drained(FAREWELL).await;
    Ok(ExitCode::SUCCESS)
}
