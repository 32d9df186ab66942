//! First words of an application, for a target's SYN (TCP Fast Open), and the targets to which they may go there.
//!
//! An application that asks for its target by SOCKS or by HTTP's CONNECT says nothing before it was told that the
//! connection is there. Where a SYN could carry its first words it is told so beforehand; if the target is not reached
//! after all, its connection is reset, and it does not learn the reason.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an application's first words are waited for: it runs on this machine, or near it, and what begins with
/// the target's words would be kept waiting for nothing.
const PATIENCE: Duration = Duration::from_millis(20);

/// The ports of targets whose SYN may carry data, which may change; clones share them.
#[derive(Clone, Debug, Default)]
pub struct FastOpenPorts(Arc<RwLock<Vec<u16>>>);

impl FastOpenPorts {
    /// These ports, from the next connection on.
    pub fn change(&self, ports: Vec<u16>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = ports;
    }

    /// Whether this is one of them.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&port)
    }
}

/// Where an application's first words are found.
#[derive(Debug, Default)]
pub struct FirstWords<'a> {
    /// What it said already.
    here: &'a [u8],
    /// Where it says them.
    socket: Option<&'a mut TcpStream>,
    /// What it waits for before.
    go_ahead: &'a [u8],
    told: bool,
    peeked: bool,
}

impl<'a> FirstWords<'a> {
    /// These, and none to come.
    #[must_use]
    pub fn known(here: &'a [u8]) -> FirstWords<'a> {
        FirstWords { here, ..FirstWords::default() }
    }

    /// What it says on this socket once it was told to go ahead; empty: it need not be told.
    #[must_use]
    pub fn to_come(socket: &'a mut TcpStream, go_ahead: &'a [u8]) -> FirstWords<'a> {
        FirstWords { socket: Some(socket), go_ahead, ..FirstWords::default() }
    }

    /// The first of them, `room` bytes at most; none if it says nothing soon. They stay where they were.
    pub(crate) async fn take(&mut self, room: usize) -> Vec<u8> {
        let Some(socket) = &mut self.socket else {
            return self.here[..room.min(self.here.len())].to_vec();
        };
        if !self.go_ahead.is_empty() && !self.told {
            self.told = true;
            if socket.write_all(self.go_ahead).await.is_err() {
                return Vec::new();
            }
        }
        let mut words = vec![0; room];
        let said = timeout(PATIENCE, socket.peek(&mut words)).await;
        words.truncate(said.ok().and_then(Result::ok).unwrap_or(0));
        self.peeked = !words.is_empty();
        words
    }

    /// The application was told to go ahead.
    #[must_use]
    pub const fn was_told(&self) -> bool {
        self.told
    }

    /// So many bytes went to the target: takes them out of the socket.
    ///
    /// # Errors
    /// The application is gone.
    pub(crate) async fn pass_over(&mut self, count: usize) -> std::io::Result<()> {
        match &mut self.socket {
            Some(socket) if self.peeked => {
                socket.read_exact(&mut vec![0; count]).await.map(|_read| ())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    #[tokio::test]
    async fn words_stay_in_the_socket_until_they_went() {
        let (mut application, mut ours) = pair().await;
        let speaking = tokio::spawn(async move {
            let mut heard = [0; 2];
            application.read_exact(&mut heard).await.unwrap();
            application.write_all(b"question").await.unwrap();
            (heard, application)
        });
        let mut words = FirstWords::to_come(&mut ours, b"ok");
        assert!(!words.was_told());
        assert_eq!(words.take(5).await, b"quest");
        assert!(words.was_told());
        words.pass_over(3).await.unwrap();
        let (heard, _application) = speaking.await.unwrap();
        assert_eq!(&heard, b"ok");
        let mut rest = [0; 5];
        ours.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"stion");
    }

    #[tokio::test]
    async fn who_says_nothing_is_not_waited_for() {
        let (_application, mut ours) = pair().await;
        let mut words = FirstWords::to_come(&mut ours, b"");
        let begun = std::time::Instant::now();
        assert!(words.take(100).await.is_empty());
        assert!(begun.elapsed() >= PATIENCE);
        // What went from elsewhere is not in the socket.
        words.pass_over(0).await.unwrap();
        let mut known = FirstWords::known(b"head");
        assert_eq!(known.take(100).await, b"head");
        known.pass_over(4).await.unwrap();
        assert_eq!(known.take(2).await, b"he");
    }

    #[test]
    fn ports_are_those_in_force() {
        let ports = FastOpenPorts::default();
        let shared = ports.clone();
        assert!(!ports.contains(443));
        shared.change(vec![443, 80]);
        assert_eq!([443, 80, 22].map(|port| ports.contains(port)), [true, true, false]);
        shared.change(Vec::new());
        assert!(!ports.contains(443));
    }
}
