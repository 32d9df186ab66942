//! Dashboard of a running client, server or front: its page shows what the control socket tells.
//! docs/operate/dashboard.md has what a person sees there.

mod happenings;
mod looks;
mod places;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use marline_dashboard::{Access, Served, Token};
use marline_proxy::private_file;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::control::Handle;
use happenings::Happenings;
use looks::Looks;

/// A dashboard that is being served; dropping it ends that.
#[derive(Debug)]
pub struct Running {
    served: Served,
    _telling: JoinSet<()>,
}

impl Running {
    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.served.local_addr()
    }

    /// Another descriptor of the listening socket.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.served.copy()
    }
}

/// Serves a dashboard, on a socket that listens already if there is one, until the result is dropped, and says on
/// standard error where. Beyond loopback it asks for a
/// token, that of the file or else a new one, which is printed; on loopback only if there is a file.
///
/// # Errors
/// The address cannot be bound, or the file is not a token that only its owner can read.
pub async fn start(
    address: SocketAddr,
    token_file: Option<&Path>,
    listening: Option<OwnedFd>,
    handle: Arc<dyn Handle>,
) -> anyhow::Result<Running> {
    let (token, shown) = match token_file {
        Some(file) => (Some(read_token(file)?), None),
        None if address.ip().to_canonical().is_loopback() => (None, None),
        None => {
            let (token, text) = Token::generate().map_err(anyhow::Error::msg)?;
            (Some(token), Some(text))
        }
    };
    let access = Access::new(address, token).map_err(anyhow::Error::msg)?;
    let looks = Looks::new(Arc::clone(&handle));
    let open = looks.open();
    let served = match listening {
        Some(socket) => TcpListener::from_std(socket.into())
            .and_then(|listener| marline_dashboard::serve_on(listener, access, Arc::new(looks))),
        None => marline_dashboard::serve(address, access, Arc::new(looks)).await,
    };
    let served = served.with_context(|| format!("cannot serve the dashboard on TCP {address}"))?;
    let fragment = shown.map(|token| format!("#token={token}")).unwrap_or_default();
    // Not on standard output, which is the program's that `marline run` runs; nor in the log, which keeps no secrets.
    eprintln!("dashboard at http://{}/{fragment}", served.local_addr());
    let mut telling = JoinSet::new();
    telling.spawn(Happenings::new(handle, served.dashboard(), open).tell());
    Ok(Running { served, _telling: telling })
}

fn read_token(file: &Path) -> anyhow::Result<Token> {
    private_file::check_mode(file)?;
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    Token::new(&text).map_err(|why| anyhow!("{shown}: {why}"))
}
