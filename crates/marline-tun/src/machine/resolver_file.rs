//! `/etc/resolv.conf` that refers to the gateway while names are resolved through the tunnel.
//!
//! Traffic to a resolver with a link-local address (`fe80::1%eth0`, from router advertisements for instance) cannot be
//! routed to the interface by rules, because its address selects a link. So the file itself is changed. It is
//! overwritten, not replaced, because it may be a mount. It keeps its former content in comments, so that any later
//! process can restore it, even after a power failure.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

use marline_io::resolv_conf;

use crate::resolver::{RESOLV_CONF, resolv_conf_for};

/// Maximum length of the file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 16;

/// Managed resolver file.
#[derive(Debug)]
pub(super) struct ResolverFile {
    resolver: IpAddr,
    /// Last error when writing, so that it is logged only once.
    failed: Option<io::ErrorKind>,
}

impl ResolverFile {
    /// Writes this resolver to the file.
    pub(super) fn install(resolver: IpAddr) -> ResolverFile {
        let mut file = ResolverFile { resolver, failed: None };
        file.check_file();
        file
    }

    /// Rewrites the file if another program, such as a DHCP client, has changed it.
    pub(super) fn check_file(&mut self) {
        match self.claim() {
            Ok(()) => self.failed = None,
            Err(error) if self.failed.replace(error.kind()) == Some(error.kind()) => {}
            Err(error) => tracing::warn!(
                "cannot write {RESOLV_CONF} ({error}): programs use the network's resolver, and names do \
                 not resolve if it cannot be reached through the tunnel"
            ),
        }
    }

    fn claim(&self) -> io::Result<()> {
        let there = read()?;
        let former = resolv_conf::network_text(&there);
        let wanted = resolv_conf::replacing(&former, &resolv_conf_for(&former, self.resolver));
        if there == wanted { Ok(()) } else { overwrite(&wanted) }
    }
}

/// Restores the former content if the file is ours.
///
/// # Errors
/// The file cannot be written.
pub(super) fn restore() -> io::Result<()> {
    let Some(former) = read().ok().and_then(|text| resolv_conf::former(&text)) else {
        return Ok(());
    };
    overwrite(&former)
}

/// Returns true if programs use only resolvers on this machine.
pub(super) fn is_local() -> bool {
    let text = read().unwrap_or_default();
    let mut resolvers = resolv_conf::resolvers(&text).peekable();
    resolvers.peek().is_some()
        && resolvers.all(|word| word.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()))
}

/// Reads the file. A missing file counts as empty.
fn read() -> io::Result<String> {
    let mut text = String::new();
    match File::open(RESOLV_CONF) {
        Ok(file) => file.take(MAX_FILE_BYTES).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    if text.len() as u64 == MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too long"));
    }
    Ok(text)
}

/// Overwrites the file with one call, so that a kill leaves either the old or the new text. A shorter text is padded
/// with empty lines to the old length before the file is truncated.
fn overwrite(text: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(RESOLV_CONF)?;
    let there = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    let mut filled = text.to_owned();
    filled.extend(std::iter::repeat_n('\n', there.saturating_sub(text.len())));
    file.write_all_at(filled.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}
