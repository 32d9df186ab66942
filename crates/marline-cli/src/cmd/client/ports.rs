//! Listening ports of a client for SOCKS5 and forwards, which may change at a reload of its configuration.
//!
//! A change is first prepared, which may fail, and then applied as a whole. A port that remains configured is not
//! opened again, even if its target changes. Connections of a removed port continue.

use std::net::SocketAddr;

use anyhow::Context;
use marline_proxy::client::socks_listener::{Service, bind};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// A port to serve.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WantedPort {
    /// Configured address.
    pub(super) address: SocketAddr,
    pub(super) service: Service,
}

/// A port that is to be served until `closed` resolves.
pub(super) struct OpenPort {
    pub(super) listener: TcpListener,
    pub(super) service: Service,
    pub(super) closed: oneshot::Receiver<()>,
}

/// A port that is being served.
struct Port {
    wanted: WantedPort,
    /// Duplicate descriptor of the socket.
    socket: std::net::TcpListener,
    /// Closes the port when dropped.
    _open: oneshot::Sender<()>,
}

/// The current ports.
pub(super) struct Ports {
    open: Vec<Port>,
    /// Unbounded, but holds at most the ports of one change.
    begin: mpsc::UnboundedSender<OpenPort>,
}

/// A prepared change of the ports.
pub(super) struct Change(Vec<Step>);

enum Step {
    /// Keep the port at this position.
    Keep(usize),
    Open(WantedPort, std::net::TcpListener),
}

impl Ports {
    /// Creates an empty set of ports. The caller must serve the ports from the receiver.
    pub(super) fn new() -> (Ports, mpsc::UnboundedReceiver<OpenPort>) {
        let (begin, begun) = mpsc::unbounded_channel();
        (Ports { open: Vec::new(), begin }, begun)
    }

    /// Opens a port and passes it on to be served.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub(super) fn open(
        &mut self,
        wanted: WantedPort,
        socket: std::net::TcpListener,
    ) -> anyhow::Result<()> {
        let listener = TcpListener::from_std(
            socket.try_clone().context("cannot duplicate the listening socket")?,
        )?;
        let (open, closed) = oneshot::channel();
        // Without a receiver, the program is stopping.
        let _ = self.begin.send(OpenPort { listener, service: wanted.service.clone(), closed });
        self.open.push(Port { wanted, socket, _open: open });
        Ok(())
    }

    /// Opens the missing ports.
    ///
    /// # Errors
    /// A port is taken or not allowed. Nothing has changed.
    pub(super) fn prepare(&self, wanted: &[WantedPort]) -> anyhow::Result<Change> {
        let mut free: Vec<bool> = vec![true; self.open.len()];
        let mut steps = Vec::new();
        for each in wanted {
            let same = |at: &usize| free[*at] && self.open[*at].wanted == *each;
            if let Some(at) = (0..self.open.len()).find(same) {
                free[at] = false;
                steps.push(Step::Keep(at));
                continue;
            }
            // Port 0 is a different port each time.
            let there =
                |port: &&Port| port.wanted.address == each.address && each.address.port() != 0;
            let socket = match self.open.iter().find(there) {
                Some(port) => {
                    port.socket.try_clone().context("cannot duplicate the listening socket")?
                }
                None => bind(each.address)?,
            };
            steps.push(Step::Open(each.clone(), socket));
        }
        Ok(Change(steps))
    }

    /// Applies the change and closes ports that are no longer configured. Returns the addresses of new ones.
    pub(super) fn commit(&mut self, Change(steps): Change) -> Vec<(SocketAddr, Service)> {
        let mut before: Vec<Option<Port>> =
            std::mem::take(&mut self.open).into_iter().map(Some).collect();
        let mut new = Vec::new();
        for step in steps {
            match step {
                Step::Keep(at) => self.open.extend(before[at].take()),
                Step::Open(wanted, socket) => {
                    let (address, service) = (socket.local_addr(), wanted.service.clone());
                    match self.open(wanted, socket) {
                        Ok(()) => new.extend(address.ok().map(|address| (address, service))),
                        Err(error) => tracing::error!("{error:#}"),
                    }
                }
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted_port(address: &str, target: Option<&str>) -> WantedPort {
        let service =
            target.map_or(Service::Socks5, |target| Service::Forward(target.parse().unwrap()));
        WantedPort { address: address.parse().unwrap(), service }
    }

    #[tokio::test]
    async fn ports_change_targets_without_being_closed() {
        let (mut ports, mut begun) = Ports::new();
        let first = wanted_port("127.0.0.1:0", None);
        let change = ports.prepare(std::slice::from_ref(&first)).unwrap();
        let address = ports.commit(change)[0].0;
        let mut socks = begun.try_recv().unwrap();
        // Without a change, nothing happens.
        let change = ports.prepare(std::slice::from_ref(&first)).unwrap();
        assert!(ports.commit(change).is_empty() && begun.try_recv().is_err());
        // Nothing happens either if another port is taken.
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = other.local_addr().unwrap().to_string();
        assert!(ports.prepare(&[first, wanted_port(&taken, None)]).is_err());
        assert!(socks.closed.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Empty));
        assert_eq!(socks.listener.local_addr().unwrap(), address);
        // A forward at a fixed port, whose target then changes.
        let (mut ports, mut begun) = Ports::new();
        let fixed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        fixed.set_nonblocking(true).unwrap();
        let fixed_address = fixed.local_addr().unwrap().to_string();
        ports.open(wanted_port(&fixed_address, Some("a.example:1")), fixed).unwrap();
        let mut old = begun.try_recv().unwrap();
        let change = ports.prepare(&[wanted_port(&fixed_address, Some("b.example:2"))]).unwrap();
        assert_eq!(ports.commit(change).len(), 1);
        let new = begun.try_recv().unwrap();
        assert_eq!(new.listener.local_addr().unwrap().to_string(), fixed_address);
        assert!(old.closed.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Closed));
        let change = ports.prepare(&[]).unwrap();
        ports.commit(change);
        drop((old, new));
        std::net::TcpListener::bind(&fixed_address).expect("the port is free again");
    }
}
