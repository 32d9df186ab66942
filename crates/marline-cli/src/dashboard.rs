//! Dashboard of a running client, server or front: a page with the data of the control socket.
//! docs/operate/dashboard.md describes the page.

mod connection_snapshots;
mod dashboard_events;
mod places;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use marline_dashboard::{Access, RunningServer, Token};
use marline_proxy::private_file;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::control::Handle;
use connection_snapshots::DashboardSource;
use dashboard_events::DashboardEvents;

/// A dashboard that is being served. Dropping this stops the service.
#[derive(Debug)]
pub struct RunningDashboard {
    served: RunningServer,
    /// Configured address.
    configured_at: SocketAddr,
    token: Option<Token>,
    /// True if the token is from a file.
    from_file: bool,
    _report_tasks: JoinSet<()>,
}

/// A dashboard that is ready to be served. Everything that may fail has succeeded.
#[derive(Debug)]
pub struct BoundDashboard {
    configured_at: SocketAddr,
    /// `None` if the address is served already.
    listener: Option<TcpListener>,
    token: Option<Token>,
    from_file: bool,
    access: Access,
    /// A new token, to be shown once.
    shown: Option<String>,
}

impl BoundDashboard {
    /// Returns a dashboard at an address, on an inherited listening socket if there is one. An address other than
    /// loopback requires a token, from the file or a new one. On loopback, only a token file requires one.
    ///
    /// # Errors
    /// The address cannot be bound, or the file does not contain a token that only its owner can read.
    pub fn bind(
        at: SocketAddr,
        token_file: Option<&Path>,
        listening: Option<OwnedFd>,
    ) -> anyhow::Result<BoundDashboard> {
        let mut opening = BoundDashboard::dashboard_access(at, token_file)?;
        let listener = match listening {
            Some(socket) => TcpListener::from_std(socket.into()),
            None => marline_dashboard::listen(at),
        };
        let listener = listener.with_context(|| format!("cannot serve the dashboard on TCP {at}"));
        opening.listener = Some(listener?);
        Ok(opening)
    }

    /// Determines who has access to the dashboard.
    fn dashboard_access(
        at: SocketAddr,
        token_file: Option<&Path>,
    ) -> anyhow::Result<BoundDashboard> {
        let (token, shown) = match token_file {
            Some(file) => (Some(read_token(file)?.0), None),
            None if at.ip().to_canonical().is_loopback() => (None, None),
            None => {
                let (token, text) = Token::generate().map_err(anyhow::Error::msg)?;
                (Some(token), Some(text))
            }
        };
        let access = Access::new(at, token.clone()).map_err(anyhow::Error::msg)?;
        let from_file = token_file.is_some();
        Ok(BoundDashboard { configured_at: at, listener: None, token, from_file, access, shown })
    }

    /// Serves the dashboard until the result is dropped, and prints its address to standard error.
    ///
    /// # Errors
    /// The socket is not a TCP socket.
    pub fn serve(self, handle: Arc<dyn Handle>) -> anyhow::Result<RunningDashboard> {
        let BoundDashboard { configured_at: at, listener, token, from_file, access, shown } = self;
        let looks = DashboardSource::new(Arc::clone(&handle));
        let open = looks.open();
        let listener = listener.context("the dashboard has no listening socket")?;
        let served = marline_dashboard::serve_on(listener, access, Arc::new(looks))?;
        announce(&served, shown);
        let mut telling = JoinSet::new();
        telling.spawn(DashboardEvents::new(handle, served.dashboard(), open).report_events());
        Ok(RunningDashboard { served, configured_at: at, token, from_file, _report_tasks: telling })
    }
}

impl RunningDashboard {
    /// Returns the local address.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.served.local_addr()
    }

    /// Duplicates the descriptor of the listening socket.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.served.copy()
    }

    /// Returns the dashboard for a changed address or token file, or `None` if nothing changes.
    ///
    /// # Errors
    /// Same as [`BoundDashboard::bind`].
    pub fn bind_if_changed(
        &self,
        at: SocketAddr,
        token_file: Option<&Path>,
    ) -> anyhow::Result<Option<BoundDashboard>> {
        if self.configured_at != at {
            return BoundDashboard::bind(at, token_file, None).map(Some);
        }
        let same = match (token_file, &self.token) {
            (Some(file), Some(token)) => self.from_file && token.matches_text(&read_token(file)?.1),
            (None, _) => !self.from_file,
            (Some(_), None) => false,
        };
        if same { Ok(None) } else { BoundDashboard::dashboard_access(at, token_file).map(Some) }
    }

    /// Applies a changed dashboard and keeps its counters. Current viewers are disconnected.
    ///
    /// # Errors
    /// The socket is not a TCP socket, and nothing has changed.
    pub fn change(&mut self, opening: BoundDashboard) -> io::Result<()> {
        let BoundDashboard { configured_at: at, listener, token, from_file, access, shown } =
            opening;
        match listener {
            Some(listener) => self.served.move_to(listener, access)?,
            None => self.served.admit(access),
        }
        (self.configured_at, self.token, self.from_file) = (at, token, from_file);
        announce(&self.served, shown);
        Ok(())
    }
}

/// Prints to standard error, because standard output belongs to the program started by `marline run`, and the log
/// contains no secrets.
fn announce(served: &RunningServer, token: Option<String>) {
    let fragment = token.map(|token| format!("#token={token}")).unwrap_or_default();
    eprintln!("dashboard at http://{}/{fragment}", served.local_addr());
}

/// Returns the token of a file, and its text.
fn read_token(file: &Path) -> anyhow::Result<(Token, String)> {
    private_file::check_mode(file)?;
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    let token = Token::new(&text).map_err(|why| anyhow!("{shown}: {why}"))?;
    Ok((token, text))
}
