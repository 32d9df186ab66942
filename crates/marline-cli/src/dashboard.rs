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
    /// As configured.
    at: SocketAddr,
    token: Option<Token>,
    /// It is one of a file.
    from_file: bool,
    _telling: JoinSet<()>,
}

/// What a dashboard is to be served with. All that may fail has not.
#[derive(Debug)]
pub struct Opening {
    at: SocketAddr,
    /// `None`: where it is served already.
    listener: Option<TcpListener>,
    token: Option<Token>,
    from_file: bool,
    access: Access,
    /// A new token, to be shown once.
    shown: Option<String>,
}

impl Opening {
    /// At an address, on a socket that listens there already if there is one. Beyond loopback a token is asked for,
    /// that of the file or else a new one; on loopback only if there is a file.
    ///
    /// # Errors
    /// The address cannot be bound, or the file is not a token that only its owner can read.
    pub fn at(
        at: SocketAddr,
        token_file: Option<&Path>,
        listening: Option<OwnedFd>,
    ) -> anyhow::Result<Opening> {
        let mut opening = Opening::for_those(at, token_file)?;
        let listener = match listening {
            Some(socket) => TcpListener::from_std(socket.into()),
            None => marline_dashboard::listen(at),
        };
        let listener = listener.with_context(|| format!("cannot serve the dashboard on TCP {at}"));
        opening.listener = Some(listener?);
        Ok(opening)
    }

    /// Who may see it.
    fn for_those(at: SocketAddr, token_file: Option<&Path>) -> anyhow::Result<Opening> {
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
        Ok(Opening { at, listener: None, token, from_file, access, shown })
    }

    /// Serves it until the result is dropped, and says on standard error where.
    ///
    /// # Errors
    /// The socket is none of TCP's.
    pub fn serve(self, handle: Arc<dyn Handle>) -> anyhow::Result<Running> {
        let Opening { at, listener, token, from_file, access, shown } = self;
        let looks = Looks::new(Arc::clone(&handle));
        let open = looks.open();
        let listener = listener.context("no free socket for the dashboard")?;
        let served = marline_dashboard::serve_on(listener, access, Arc::new(looks))?;
        announce(&served, shown);
        let mut telling = JoinSet::new();
        telling.spawn(Happenings::new(handle, served.dashboard(), open).tell());
        Ok(Running { served, at, token, from_file, _telling: telling })
    }
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

    /// What it takes to serve it there for those instead; `None`: it is served so.
    ///
    /// # Errors
    /// As [`Opening::at`].
    pub fn differs(
        &self,
        at: SocketAddr,
        token_file: Option<&Path>,
    ) -> anyhow::Result<Option<Opening>> {
        if self.at != at {
            return Opening::at(at, token_file, None).map(Some);
        }
        let same = match (token_file, &self.token) {
            (Some(file), Some(token)) => self.from_file && token.is_of(&read_token(file)?.1),
            (None, _) => !self.from_file,
            (Some(_), None) => false,
        };
        if same { Ok(None) } else { Opening::for_those(at, token_file).map(Some) }
    }

    /// Serves it so from now on, with what it has counted; who watched is let go.
    ///
    /// # Errors
    /// The socket is none of TCP's: nothing has changed.
    pub fn change(&mut self, opening: Opening) -> io::Result<()> {
        let Opening { at, listener, token, from_file, access, shown } = opening;
        match listener {
            Some(listener) => self.served.move_to(listener, access)?,
            None => self.served.admit(access),
        }
        (self.at, self.token, self.from_file) = (at, token, from_file);
        announce(&self.served, shown);
        Ok(())
    }
}

/// Not on standard output, which is the program's that `marline run` runs; nor in the log, which keeps no secrets.
fn announce(served: &Served, token: Option<String>) {
    let fragment = token.map(|token| format!("#token={token}")).unwrap_or_default();
    eprintln!("dashboard at http://{}/{fragment}", served.local_addr());
}

/// A file's token, and its text.
fn read_token(file: &Path) -> anyhow::Result<(Token, String)> {
    private_file::check_mode(file)?;
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    let token = Token::new(&text).map_err(|why| anyhow!("{shown}: {why}"))?;
    Ok((token, text))
}
