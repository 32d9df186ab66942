//! Namespaces of a program: user, network and mount, with the interface and the resolver's configuration in them.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::anyhow;
use marline_io::{GATEWAY_INTERFACE, InterfaceSetup, Tun};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;

use super::diagnosis::{Step, explain, read};
use crate::addresses::Addresses;
use crate::interface::ReadyInterface;
use crate::resolver;

/// Place of what programs read about resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Sockets of services that resolve names for programs outside, and so around the tunnel. The C library asks the
/// resolver of `resolv.conf` where they do not answer.
const NAME_SERVICES: &[&str] = &[
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/avahi-daemon/socket",
];

/// Names, as programs inside resolve them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Text of their `resolv.conf`.
    pub resolv_conf: String,
}

impl Names {
    /// By the gateway's DNS service, with the search list of this machine.
    ///
    /// # Errors
    /// There is no `/etc/resolv.conf` to put another in place of.
    pub fn by_gateway(addresses: &Addresses) -> anyhow::Result<Names> {
        let host = host_resolv_conf()?;
        Ok(Names { resolv_conf: resolver::inside(&host, addresses.gateway_v4.into()) })
    }
}

/// This machine's `resolv.conf`.
///
/// # Errors
/// It is not there.
pub(crate) fn host_resolv_conf() -> anyhow::Result<String> {
    fs::read_to_string(RESOLV_CONF).map_err(|error| {
        anyhow!("{RESOLV_CONF}: {error}: programs inside need this file to mount another over it: create it")
    })
}

/// A step that failed.
type Failed = (Step, io::Error);

/// Puts the calling process, which must have one thread, into namespaces of its own, in which it is the same user and
/// has the interface whose descriptor this returns, and no other but loopback. Needs no privilege where the system lets
/// users make user namespaces. The process has all capabilities there until it becomes another program.
///
/// # Errors
/// The system refuses: the error names the switch.
pub fn enter(addresses: &Addresses, names: &Names) -> anyhow::Result<OwnedFd> {
    entered(addresses, names).map_err(|(step, error)| anyhow!(explain(step, &error, read)))
}

fn entered(addresses: &Addresses, names: &Names) -> Result<OwnedFd, Failed> {
    make_namespaces()?;
    let setup = |error| (Step::Setup, error);
    let tun = Tun::open_offloading(GATEWAY_INTERFACE).map_err(|error| (Step::Interface, error))?;
    set_up_interfaces(addresses).map_err(setup)?;
    let_ping();
    put_names_in_place(names).map_err(setup)?;
    Ok(tun.into())
}

/// Root takes no user namespace if it can do without: programs may then become other users.
fn make_namespaces() -> Result<(), Failed> {
    let both = UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    if rustix::process::geteuid().is_root() && unshare(both).is_ok() {
        return Ok(());
    }
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    unshare(both | UnshareFlags::NEWUSER).map_err(|error| (Step::Namespaces, error))?;
    let identity = |error| (Step::Identity, error);
    // With capabilities on its file (`setcap`) a process may not touch its own entries in /proc, unless it says so.
    let dumpable = rustix::process::DumpableBehavior::Dumpable;
    rustix::process::set_dumpable_behavior(dumpable).map_err(|error| identity(error.into()))?;
    // Else who has left a group could come back through a group's absence (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny").map_err(identity)?;
    let same = |id: u32| format!("{id} {id} 1");
    fs::write("/proc/self/uid_map", same(user.as_raw())).map_err(identity)?;
    fs::write("/proc/self/gid_map", same(group.as_raw())).map_err(identity)
}

fn unshare(what: UnshareFlags) -> io::Result<()> {
    // SAFETY: descriptors stay shared, which is what could go wrong with other threads, of which there are none.
    Ok(unsafe { rustix::thread::unshare_unsafe(what) }?)
}

fn set_up_interfaces(addresses: &Addresses) -> io::Result<()> {
    InterfaceSetup::named("lo")?.up(None)?;
    ReadyInterface::set_up(addresses)?.add_default_routes()
}

/// Lets everybody send echo requests, as most systems do: it is allowed to no group in a new namespace.
fn let_ping() {
    let group = rustix::process::getegid().as_raw();
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{group} {group}"));
}

/// Programs that read `resolv.conf` find the gateway's resolver there, and those services that know others' do not
/// answer.
fn put_names_in_place(names: &Names) -> io::Result<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    // A file system of our own for the time it takes to put its files elsewhere: it lives on with them, and ends
    // with the namespace.
    let workplace =
        ["/tmp", "/run", "/mnt", "/var"].into_iter().find(|path| Path::new(path).is_dir());
    let workplace = Path::new(workplace.ok_or(io::ErrorKind::NotFound)?);
    let services: Vec<&Path> =
        NAME_SERVICES.iter().map(Path::new).filter(|path| path.exists()).collect();
    let target = fs::canonicalize(RESOLV_CONF)?;
    let target = descriptor_path(&target)?;
    let services: Vec<_> =
        services.into_iter().filter_map(|path| descriptor_path(path).ok()).collect();
    let options = Some(c"mode=0755,size=64k");
    rustix::mount::mount("tmpfs", workplace, "tmpfs", MountFlags::NOSUID, options)?;
    let placed = place(names, workplace, &target, &services);
    let _ = rustix::mount::unmount(workplace, UnmountFlags::DETACH);
    placed
}

fn place(
    names: &Names,
    workplace: &Path,
    target: &(OwnedFd, String),
    services: &[(OwnedFd, String)],
) -> io::Result<()> {
    let (file, nothing) = (workplace.join("resolv.conf"), workplace.join("nothing"));
    fs::write(&file, &names.resolv_conf)?;
    fs::write(&nothing, "")?;
    rustix::mount::mount_bind(&file, &target.1)?;
    for (_, path) in services {
        rustix::mount::mount_bind(&nothing, path)?;
    }
    Ok(())
}

/// A file by a descriptor, which still means the same when something was mounted above it.
fn descriptor_path(path: &Path) -> io::Result<(OwnedFd, String)> {
    use std::os::fd::AsRawFd;
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let descriptor = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    Ok((descriptor, path))
}
