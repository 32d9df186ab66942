//! `/etc/resolv.conf` while names are the tunnel's: it names the gateway.
//!
//! A resolver of one link (`fe80::1%eth0`, as router advertisements bring them) cannot be led to the interface by
//! rules: its address means a link. So the file itself is changed, in place, as it may be a mount of its own. It keeps
//! what was there before in comments, so that it can be restored even after the machine lost its power.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

use marline_io::resolv_conf;

use crate::resolver::{RESOLV_CONF, inside};

/// Bytes of a file that is taken for one.
const LONGEST: u64 = 1 << 16;

/// The file, as it is to be.
#[derive(Debug)]
pub(super) struct ResolverFile {
    resolver: IpAddr,
    /// What it could not be written for, so that this is logged once.
    failed: Option<io::ErrorKind>,
}

impl ResolverFile {
    /// Names this resolver there.
    pub(super) fn own(resolver: IpAddr) -> ResolverFile {
        let mut file = ResolverFile { resolver, failed: None };
        file.look();
        file
    }

    /// Writes it again if something else has written it, such as a DHCP client.
    pub(super) fn look(&mut self) {
        match self.claim() {
            Ok(()) => self.failed = None,
            Err(error) if self.failed.replace(error.kind()) == Some(error.kind()) => {}
            Err(error) => tracing::warn!(
                "cannot write {RESOLV_CONF} ({error}): programs ask the network's resolver, and names do not resolve \
                 where queries to it cannot go through the tunnel"
            ),
        }
    }

    fn claim(&self) -> io::Result<()> {
        let there = read()?;
        let former = resolv_conf::of_network(&there);
        let wanted = resolv_conf::replacing(&former, &inside(&former, self.resolver));
        if there == wanted { Ok(()) } else { overwrite(&wanted) }
    }
}

/// Restores what was there before, if the file is ours.
///
/// # Errors
/// It cannot be written.
pub(super) fn restore() -> io::Result<()> {
    let Some(former) = read().ok().and_then(|text| resolv_conf::former(&text)) else {
        return Ok(());
    };
    overwrite(&former)
}

/// Whether programs ask only resolvers of this machine.
pub(super) fn is_local() -> bool {
    let text = read().unwrap_or_default();
    let mut resolvers = resolv_conf::resolvers(&text).peekable();
    resolvers.peek().is_some()
        && resolvers.all(|word| word.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()))
}

/// A file that is not there is empty.
fn read() -> io::Result<String> {
    let mut text = String::new();
    match File::open(RESOLV_CONF) {
        Ok(file) => file.take(LONGEST).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    if text.len() as u64 == LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
    }
    Ok(text)
}

/// By one call, so that whoever ends this process leaves the old text or the new one: a shorter one fills the old
/// one's place with empty lines before the file is cut.
fn overwrite(text: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(RESOLV_CONF)?;
    let there = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    let mut filled = text.to_owned();
    filled.extend(std::iter::repeat_n('\n', there.saturating_sub(text.len())));
    file.write_all_at(filled.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}
