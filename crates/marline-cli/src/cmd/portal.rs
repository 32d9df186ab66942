//! Subcommand `marline portal`: lets one program reach the login page of a network outside the tunnel, until the login
//! is done.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use marline_io::{Interface, Interfaces, KeptCapabilities, interface_resolvers};
use marline_proxy::client::open_targets::OpenTargets;
use marline_proxy::secret::hide_invites;
use marline_proxy::shutdown::Stopper;
use marline_tun::addresses::Addresses;
use marline_tun::datagram::NoDatagrams;
use marline_tun::gateway::{Gateway, GatewaySettings, PacketSource};
use marline_tun::inside::{self, Names, OuterProcess, ProcessRole, Program, ProgramInterface};
use marline_tun::machine::routing::MARK;
use marline_tun::portal::{Finding, PortalOpener, Probe};
use marline_tun::resolver::{self, Resolvers};

use super::run::{become_command, end};
use crate::memory;
use crate::native::drop_privileges;
use crate::sudo_caller::SudoCaller;

/// Default page to probe, which Android and Chromium request as well.
const PROBE: &str = "http://connectivitycheck.gstatic.com/generate_204";
/// Placeholder for the page in the program's arguments, as in desktop entries.
const PLACEHOLDER: &str = "%u";
/// Interval between checks for the end of the portal.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Time after the login in which the page behind it can still be read.
const CLOSING_TIME: Duration = Duration::from_secs(5);
/// Maximum number of connections of a browser on a login page.
const CONNECTIONS: usize = 256;

/// Arguments of `marline portal`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Interface of the network that requires a login [default: the only one with a default route]
    #[arg(value_name = "IFACE")]
    pub interface: Option<String>,
    /// DNS resolver of that network [default: from this machine's configuration]
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = resolver::parse)]
    pub dns: Option<SocketAddr>,
    /// Plain HTTP page that answers with status 204 if no portal intercepts it
    #[arg(long, value_name = "URL", default_value = PROBE)]
    pub probe: Probe,
    /// Program to run with access to this network only, and its arguments, in which %u stands for the login
    /// page; without one, only report whether a login is required
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Work that remains once threads have started.
#[derive(Debug)]
pub enum PreparedPortal {
    /// Check for a portal and report the result.
    Look(PortalOpener, Probe),
    /// Relay a program's traffic.
    Relay {
        /// Opener of connections through the network.
        way: PortalOpener,
        /// Page that is requested repeatedly.
        probe: Probe,
        /// Receiver of results.
        outside: OuterProcess,
        /// Network interface of the program.
        interface: ProgramInterface,
    },
}

/// Splits the process if there is a program: one half becomes the program and does not return from here. Must be
/// called before threads are started. Returns `None` if the other half failed and has reported why.
///
/// # Errors
/// The interface does not exist, or it is ambiguous.
pub fn prepare(args: Args) -> anyhow::Result<Option<PreparedPortal>> {
    let way = choose_opener(&args)?;
    if args.command.is_empty() {
        drop_privileges(KeptCapabilities::NetAdmin)?;
        return Ok(Some(PreparedPortal::Look(way, args.probe)));
    }
    let addresses = Addresses::default();
    let half = Names::use_gateway_dns(&addresses).and_then(|names| Ok((names, inside::split()?)));
    let outside = match half {
        Ok((_, ProcessRole::Outside(outside))) => outside,
        Ok((names, ProcessRole::Program(program))) => {
            match become_program(program, &args, &addresses, &names) {
                Ok(never) => match never {},
                Err(error) => end(&error),
            }
        }
        Err(error) => end(&error),
    };
    // The program's half is another process by now. This process marks its packets if it has the permission.
    let dropped = drop_privileges(KeptCapabilities::NetAdmin);
    let received = dropped
        .and_then(|()| outside.receive_interface().context("did not receive the TUN device"));
    match received {
        Ok(interface) => Ok(interface.map(|interface| {
            let probe = args.probe;
            PreparedPortal::Relay { way, probe, outside, interface }
        })),
        Err(error) => {
            outside.failed(&hide_invites(&format!("{error:#}")));
            Ok(None)
        }
    }
}

fn choose_opener(args: &Args) -> anyhow::Result<PortalOpener> {
    let interfaces = Interfaces::now().context("cannot list interfaces")?;
    let interface = choose(&interfaces, args.interface.as_deref())?;
    let found = || interface_resolvers(&interface.name, interface.index);
    let resolvers = args.dns.map_or_else(found, |dns| vec![dns]);
    Ok(PortalOpener::new(interface.name.clone(), MARK, resolvers))
}

fn choose<'a>(interfaces: &'a Interfaces, name: Option<&str>) -> anyhow::Result<&'a Interface> {
    if let Some(name) = name {
        let interface = interfaces.find_by_name(name);
        return interface.with_context(|| format!("interface `{name}` not found"));
    }
    match interfaces.with_default_route()[..] {
        [] => bail!("no interface has a default route: name an interface"),
        [only] => Ok(only),
        ref several => {
            let names: Vec<&str> = several.iter().map(|i| i.name.as_str()).collect();
            bail!(
                "several interfaces have a default route; choose one: marline portal {}",
                names.join(" | ")
            )
        }
    }
}

fn become_program(
    program: Program,
    args: &Args,
    addresses: &Addresses,
    names: &Names,
) -> anyhow::Result<Infallible> {
    let tun = inside::enter(addresses, names)?;
    program.hand_over(tun)?;
    let (name, rest) = args.command.split_first().context("missing program to run")?;
    let page = args.probe.to_string();
    let filled = |word: &OsString| match word == OsStr::new(PLACEHOLDER) {
        true => OsString::from(&page),
        false => word.clone(),
    };
    let mut command = Command::new(name);
    command.args(rest.iter().map(filled));
    // A browser must not run as root.
    if let Some(user) = SudoCaller::find() {
        command.uid(user.uid).gid(user.gid).env("HOME", user.home);
    }
    become_command(&mut command)
}

/// Checks for a portal, or relays the program's traffic until the program has ended or the portal is gone.
///
/// # Errors
/// The program cannot be watched.
pub async fn run(prepared: PreparedPortal) -> anyhow::Result<ExitCode> {
    match prepared {
        PreparedPortal::Look(way, probe) => {
            let finding = probe.send(&way).await;
            println!("{}", finding_text(&way, &probe, &finding));
            Ok(if finding == Finding::Open { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        PreparedPortal::Relay { way, probe, outside, interface } => {
            let finding = probe.send(&way).await;
            if !matches!(finding, Finding::Portal { .. }) {
                outside.failed(&finding_text(&way, &probe, &finding));
                return Ok(ExitCode::FAILURE);
            }
            serve_program(way, &probe, outside, interface).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn finding_text(way: &PortalOpener, probe: &Probe, finding: &Finding) -> String {
    let interface = way.interface();
    match finding {
        Finding::Open => format!("{interface}: no login required: {probe} answers"),
        Finding::Portal { url } => {
            let page = url.clone().unwrap_or_else(|| probe.to_string());
            format!(
                "{interface}: login required: {page} (marline portal {interface} -- BROWSER %u)"
            )
        }
        Finding::Silent(why) => format!(
            "{interface}: no answer from a login page: {why} (with `marline up --kill-switch`, `marline \
             portal` needs root)"
        ),
    }
}

async fn serve_program(
    way: PortalOpener,
    probe: &Probe,
    outside: OuterProcess,
    interface: ProgramInterface,
) -> anyhow::Result<()> {
    let ProgramInterface { tun, program } = interface;
    let resolvers = way.resolver().map(|resolver| Resolvers::new(resolver.into(), []));
    let settings = GatewaySettings {
        addresses: Addresses::default(),
        resolvers,
        served: PacketSource::Program,
        connections: CONNECTIONS,
        targets: OpenTargets::default(),
        memory: memory::process_account().clone(),
    };
    let stopper = Stopper::default();
    let gateway = match Gateway::start(tun, settings, Box::new(NoDatagrams)) {
        Ok(gateway) => gateway,
        Err(error) => {
            outside.failed(&format!("TUN interface failed: {error}"));
            return Ok(());
        }
    };
    let serving = tokio::spawn(gateway.serve(Arc::new(way.clone()), stopper.listen()));
    outside.notify_ready();
    let used = async {
        program.wait_for_program().await?;
        program.wait_for_descendants().await;
        anyhow::Ok(())
    };
    tokio::select! {
        ended = used => ended?,
        () = wait_until_logged_in(&way, probe) => {
            let interface = way.interface();
            eprintln!("marline: {interface}: logged in; the program's network access ends in 5 s");
            tokio::time::sleep(CLOSING_TIME).await;
        }
    }
    stopper.end();
    serving.await.context("the gateway failed")
}

/// Waits until the probed page itself answers.
async fn wait_until_logged_in(way: &PortalOpener, probe: &Probe) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if probe.send(way).await == Finding::Open {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_probe_parses() {
        assert_eq!(PROBE.parse::<Probe>().unwrap().to_string(), PROBE);
    }
}
