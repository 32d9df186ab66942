//! Listening ports of a client that may come and go as its configuration is read again: of SOCKS5, and forwards.
//!
//! A change is prepared, which may fail, before any of it is done. A port that stays is not opened again, even if it
//! leads elsewhere from then on; of one that goes, the connections stay.

use std::net::SocketAddr;

use anyhow::Context;
use marline_proxy::client::socks_listener::{Service, bind};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// What is to be served: the address as configured, and what for.
pub(super) type Wanted = (SocketAddr, Service);

/// A port that is to be served until `closed` resolves.
pub(super) struct Opened {
    pub(super) listener: TcpListener,
    pub(super) service: Service,
    pub(super) closed: oneshot::Receiver<()>,
}

/// A port that is served.
struct Port {
    wanted: Wanted,
    /// Another descriptor of it.
    socket: std::net::TcpListener,
    /// Dropped, it is closed.
    _open: oneshot::Sender<()>,
}

/// The ports there are.
pub(super) struct Ports {
    open: Vec<Port>,
    /// As many wait there as were opened at once.
    begin: mpsc::UnboundedSender<Opened>,
}

/// What is to become of them.
pub(super) struct Change(Vec<Step>);

enum Step {
    /// The port at this place stays.
    Keep(usize),
    Open(Wanted, std::net::TcpListener),
}

impl Ports {
    /// None yet; those that are opened are to be served by who has the other end.
    pub(super) fn new() -> (Ports, mpsc::UnboundedReceiver<Opened>) {
        let (begin, begun) = mpsc::unbounded_channel();
        (Ports { open: Vec::new(), begin }, begun)
    }

    /// Has this port served.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub(super) fn open(
        &mut self,
        wanted: Wanted,
        socket: std::net::TcpListener,
    ) -> anyhow::Result<()> {
        let listener = TcpListener::from_std(socket.try_clone().context("a listening port")?)?;
        let (open, closed) = oneshot::channel();
        // Who would serve it is gone: everything ends.
        let _ = self.begin.send(Opened { listener, service: wanted.1.clone(), closed });
        self.open.push(Port { wanted, socket, _open: open });
        Ok(())
    }

    /// Opens what is missing of these.
    ///
    /// # Errors
    /// A port is taken or not allowed: nothing has changed.
    pub(super) fn prepare(&self, wanted: &[Wanted]) -> anyhow::Result<Change> {
        let mut free: Vec<bool> = vec![true; self.open.len()];
        let mut steps = Vec::new();
        for each in wanted {
            let same = |at: &usize| free[*at] && self.open[*at].wanted == *each;
            if let Some(at) = (0..self.open.len()).find(same) {
                free[at] = false;
                steps.push(Step::Keep(at));
                continue;
            }
            // Port 0 is another one each time.
            let there = |port: &&Port| port.wanted.0 == each.0 && each.0.port() != 0;
            let socket = match self.open.iter().find(there) {
                Some(port) => port.socket.try_clone().context("a listening port")?,
                None => bind(each.0)?,
            };
            steps.push(Step::Open(each.clone(), socket));
        }
        Ok(Change(steps))
    }

    /// Does it; what is not wanted any more is closed. Gives the addresses of those that are new.
    pub(super) fn commit(&mut self, Change(steps): Change) -> Vec<(SocketAddr, Service)> {
        let mut before: Vec<Option<Port>> =
            std::mem::take(&mut self.open).into_iter().map(Some).collect();
        let mut new = Vec::new();
        for step in steps {
            match step {
                Step::Keep(at) => self.open.extend(before[at].take()),
                Step::Open(wanted, socket) => {
                    let (address, service) = (socket.local_addr(), wanted.1.clone());
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

    fn wanted(address: &str, target: Option<&str>) -> Wanted {
        let service =
            target.map_or(Service::Socks5, |target| Service::Forward(target.parse().unwrap()));
        (address.parse().unwrap(), service)
    }

    #[tokio::test]
    async fn ports_come_go_and_change_where_they_lead_without_being_closed() {
        let (mut ports, mut begun) = Ports::new();
        let first = wanted("127.0.0.1:0", None);
        let change = ports.prepare(std::slice::from_ref(&first)).unwrap();
        let address = ports.commit(change)[0].0;
        let mut socks = begun.try_recv().unwrap();
        // Nothing new: nothing happens.
        let change = ports.prepare(std::slice::from_ref(&first)).unwrap();
        assert!(ports.commit(change).is_empty() && begun.try_recv().is_err());
        // Another port that is taken: nothing happens, either.
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = other.local_addr().unwrap().to_string();
        assert!(ports.prepare(&[first, wanted(&taken, None)]).is_err());
        assert!(socks.closed.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Empty));
        assert_eq!(socks.listener.local_addr().unwrap(), address);
        // A forward at a port of its own, which then leads elsewhere.
        let (mut ports, mut begun) = Ports::new();
        let fixed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        fixed.set_nonblocking(true).unwrap();
        let fixed_address = fixed.local_addr().unwrap().to_string();
        ports.open(wanted(&fixed_address, Some("a.example:1")), fixed).unwrap();
        let mut old = begun.try_recv().unwrap();
        let change = ports.prepare(&[wanted(&fixed_address, Some("b.example:2"))]).unwrap();
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
