//! Namespaces of a program: user, network and mount, with the interface and the resolver configuration in them.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::anyhow;
use marline_io::{GATEWAY_INTERFACE, InterfaceSetup, Tun};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;

use super::diagnosis::{Step, explain_failure, read};
use crate::addresses::Addresses;
use crate::interface::ReadyInterface;
use crate::resolver;

/// Path of the programs' resolver configuration.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Sockets of services that resolve names for programs outside the tunnel. If these services do not answer, the C
/// library queries the resolver of `resolv.conf`.
const NAME_SERVICES: &[&str] = &[
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/avahi-daemon/socket",
];

/// Name resolution for programs in the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Content of `resolv.conf`.
    pub resolv_conf: String,
}

impl Names {
    /// Uses the gateway's DNS service with this machine's search list.
    ///
    /// # Errors
    /// There is no `/etc/resolv.conf` that could be replaced.
    pub fn use_gateway_dns(addresses: &Addresses) -> anyhow::Result<Names> {
        let host = read_host_resolv_conf()?;
        Ok(Names { resolv_conf: resolver::resolv_conf_for(&host, addresses.gateway_v4.into()) })
    }
}

/// Reads this machine's `resolv.conf`.
///
/// # Errors
/// The file does not exist.
pub(crate) fn read_host_resolv_conf() -> anyhow::Result<String> {
    fs::read_to_string(RESOLV_CONF).map_err(|error| {
        anyhow!("{RESOLV_CONF}: {error}: create this file, as another is mounted over it for the program")
    })
}

/// Failed step with its error.
type FailedStep = (Step, io::Error);

/// Moves the calling process, which must have one thread, into its own namespaces. It keeps its user id and has only
/// the interface, whose descriptor is returned, and loopback. Requires no privileges if the system lets users create
/// user namespaces. The process has all capabilities there until it executes another program.
///
/// # Errors
/// The system refuses: the error names the responsible setting.
pub fn enter(addresses: &Addresses, names: &Names) -> anyhow::Result<OwnedFd> {
    enter_namespaces(addresses, names)
        .map_err(|(step, error)| anyhow!(explain_failure(step, &error, read)))
}

fn enter_namespaces(addresses: &Addresses, names: &Names) -> Result<OwnedFd, FailedStep> {
    make_namespaces()?;
    let setup = |error| (Step::Setup, error);
    let tun = Tun::open_offloading(GATEWAY_INTERFACE).map_err(|error| (Step::Interface, error))?;
    set_up_interfaces(addresses).map_err(setup)?;
    permit_echo_requests();
    install_resolver_file(names).map_err(setup)?;
    Ok(tun.into())
}

/// Creates the namespaces. Root avoids a user namespace if possible, so that programs can change to other users.
fn make_namespaces() -> Result<(), FailedStep> {
    let both = UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    if rustix::process::geteuid().is_root() && unshare(both).is_ok() {
        return Ok(());
    }
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    unshare(both | UnshareFlags::NEWUSER).map_err(|error| (Step::Namespaces, error))?;
    let identity = |error| (Step::Identity, error);
    // A process with file capabilities (`setcap`) may not access its own entries in /proc unless it is dumpable.
    let dumpable = rustix::process::DumpableBehavior::Dumpable;
    rustix::process::set_dumpable_behavior(dumpable).map_err(|error| identity(error.into()))?;
    // Otherwise a process could regain access denied to a group by leaving that group (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny").map_err(identity)?;
    let same = |id: u32| format!("{id} {id} 1");
    fs::write("/proc/self/uid_map", same(user.as_raw())).map_err(identity)?;
    fs::write("/proc/self/gid_map", same(group.as_raw())).map_err(identity)
}

fn unshare(what: UnshareFlags) -> io::Result<()> {
    // SAFETY: descriptors stay shared, which would be a problem only with other threads, and there are none.
    Ok(unsafe { rustix::thread::unshare_unsafe(what) }?)
}

fn set_up_interfaces(addresses: &Addresses) -> io::Result<()> {
    InterfaceSetup::named("lo")?.set_up(None)?;
    ReadyInterface::set_up(addresses)?.add_default_routes()
}

/// Permits echo requests, as most systems do. A new namespace permits them to no group.
fn permit_echo_requests() {
    let group = rustix::process::getegid().as_raw();
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{group} {group}"));
}

/// Makes programs that read `resolv.conf` find the gateway's resolver, and hides the services that use other
/// resolvers.
fn install_resolver_file(names: &Names) -> io::Result<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    // Our own file system during setup, whose files are then mounted elsewhere. It exists as long as they do, at
    // most until the namespace ends.
    let workplace =
        ["/tmp", "/run", "/mnt", "/var"].into_iter().find(|path| Path::new(path).is_dir());
    let workplace = Path::new(workplace.ok_or(io::ErrorKind::NotFound)?);
    let services: Vec<&Path> =
        NAME_SERVICES.iter().map(Path::new).filter(|path| path.exists()).collect();
    let target = fs::canonicalize(RESOLV_CONF)?;
    let (_target, target_path) = open_descriptor_path(&target)?;
    let services: Vec<_> =
        services.into_iter().filter_map(|path| open_descriptor_path(path).ok()).collect();
    let options = Some(c"mode=0755,size=64k");
    rustix::mount::mount("tmpfs", workplace, "tmpfs", MountFlags::NOSUID, options)?;
    let placed = mount_files(names, workplace, &target_path, &services);
    let _ = rustix::mount::unmount(workplace, UnmountFlags::DETACH);
    placed
}

fn mount_files(
    names: &Names,
    workplace: &Path,
    target: &str,
    services: &[(OwnedFd, String)],
) -> io::Result<()> {
    let (file, nothing) = (workplace.join("resolv.conf"), workplace.join("nothing"));
    fs::write(&file, &names.resolv_conf)?;
    fs::write(&nothing, "")?;
    rustix::mount::mount_bind(&file, target)?;
    for (_, path) in services {
        rustix::mount::mount_bind(&nothing, path)?;
    }
    Ok(())
}

/// Opens a file and returns a path by descriptor, which refers to the same file even if something is mounted over
/// it.
fn open_descriptor_path(path: &Path) -> io::Result<(OwnedFd, String)> {
    use std::os::fd::AsRawFd;
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let descriptor = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    Ok((descriptor, path))
}
