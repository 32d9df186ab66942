//! Places where a client's invite is stored: `marline join` stores it, and all other commands find it there.
//!
//! | process | places, in order |
//! |---|---|
//! | an ordinary user's | `$XDG_CONFIG_HOME/marline/invite` (`~/.config`), `/etc/marline/invite` if it can be read |
//! | root's | `/etc/marline/invite`, and under `sudo` `~/.config/marline/invite` of the calling user |
//!
//! The first existing file is used. If that file cannot be used, this is an error, because the next one may lead to
//! another server. Root reads only files that it or the calling user owns.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail};
use marline_proxy::invite::Invite;
use marline_proxy::private_file;
use marline_proxy::target::Target;
use rustix::fs::OFlags;

use crate::config::shared::Layer;
use crate::sudo_caller::SudoCaller;

/// Directory of the machine-wide configuration.
const MACHINE: &str = "/etc/marline";
/// Name of an invite's file.
const FILE: &str = "invite";
/// Maximum number of bytes read from a file: the longest invite, and white space.
const MAX_INVITE_BYTES: u64 = 16 * 1_024;

/// Owner of the invite in a place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Scope {
    /// The user of this process.
    User,
    /// The machine: owned by root, and perhaps readable by a group.
    Machine,
    /// The user who became root with `sudo`.
    Caller,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    scope: Scope,
    /// The user id that must own the file.
    owner: u32,
}

/// The places of this process in search order. An invite is stored in the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvitePlaces {
    places: Vec<Place>,
    is_root: bool,
}

/// An invite and the file it was found in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundInvite {
    /// The invite.
    pub invite: Invite,
    /// Path of the file.
    pub path: PathBuf,
}

/// Outcome of storing an invite.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// There was no invite.
    New,
    /// The invite was already stored.
    Unchanged,
    /// Another invite was replaced.
    Replaced,
}

impl InvitePlaces {
    /// Returns the places of this process, by its user and environment.
    #[must_use]
    pub fn for_process() -> InvitePlaces {
        let user = rustix::process::geteuid();
        let directory = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let absolute = |path: &PathBuf| path.is_absolute();
        let config = directory("XDG_CONFIG_HOME").filter(absolute);
        let config = config.or_else(|| Some(directory("HOME").filter(absolute)?.join(".config")));
        match user.is_root() {
            true => InvitePlaces::for_root(Path::new(MACHINE), SudoCaller::find().as_ref()),
            false => InvitePlaces::for_user(user.as_raw(), config.as_deref(), Path::new(MACHINE)),
        }
    }

    fn for_user(uid: u32, config: Option<&Path>, machine: &Path) -> InvitePlaces {
        let own = config.map(|config| Place {
            path: config.join("marline").join(FILE),
            scope: Scope::User,
            owner: uid,
        });
        let places = own.into_iter().chain([Place::machine_place(machine)]).collect();
        InvitePlaces { places, is_root: false }
    }

    fn for_root(machine: &Path, caller: Option<&SudoCaller>) -> InvitePlaces {
        let callers = caller.map(|caller| Place {
            path: caller.home.join(".config/marline").join(FILE),
            scope: Scope::Caller,
            owner: caller.uid,
        });
        let places = [Place::machine_place(machine)].into_iter().chain(callers).collect();
        InvitePlaces { places, is_root: true }
    }

    /// Returns the stored invite.
    ///
    /// # Errors
    /// There is none, or the first existing file cannot be used.
    pub fn find(&self) -> anyhow::Result<FoundInvite> {
        self.find_stored()?.with_context(|| self.missing_invite_text())
    }

    /// Returns the stored invite, or `None` if there is none.
    ///
    /// # Errors
    /// The first existing file cannot be used.
    pub fn find_stored(&self) -> anyhow::Result<Option<FoundInvite>> {
        for place in &self.places {
            let shown = place.path.display();
            let file = match place.open() {
                Ok(file) => file,
                Err(error) if is_absent(&error) => continue,
                Err(error) if self.is_closed_to_users(place, &error) => continue,
                Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
            };
            place.check(&file)?;
            let invite =
                read_invite(file).with_context(|| format!("cannot read an invite from {shown}"))?;
            return Ok(Some(FoundInvite { invite, path: place.path.clone() }));
        }
        Ok(None)
    }

    /// Returns true if users cannot read the machine's invite, which is usual.
    fn is_closed_to_users(&self, place: &Place, error: &io::Error) -> bool {
        !self.is_root
            && place.scope == Scope::Machine
            && error.kind() == ErrorKind::PermissionDenied
    }

    fn missing_invite_text(&self) -> String {
        let looked: Vec<String> =
            self.places.iter().map(|place| place.path.display().to_string()).collect();
        let machine = self.places.iter().find(|place| place.scope == Scope::Machine);
        let closed = machine.is_some_and(|place| {
            place.open().is_err_and(|error| self.is_closed_to_users(place, &error))
        });
        let hint = match closed {
            true => "; only root can read this machine's invite",
            false => "",
        };
        format!(
            "no invite (searched {}{hint}): run `marline join` and paste the invite that the server \
             printed, or name its file with --invite-file",
            looked.join(" and ")
        )
    }

    /// Returns the place where an invite is stored.
    ///
    /// # Errors
    /// The user has no home directory.
    pub fn own_place(&self) -> anyhow::Result<&Path> {
        let own = self.places.first().filter(|place| self.is_root || place.scope == Scope::User);
        let own = own.context(
            "neither HOME nor XDG_CONFIG_HOME is set: set HOME, or keep \
             the invite in a file of mode 0600 and name it with --invite-file",
        )?;
        Ok(&own.path)
    }

    /// Stores an invite for all commands of this user, or of the machine if the user is root.
    ///
    /// # Errors
    /// There is another invite and `replace` is not set, or the file cannot be written.
    pub fn store(&self, invite: &Invite, replace: bool) -> anyhow::Result<StoreOutcome> {
        let path = self.own_place()?;
        self.make_directory(path)?;
        let _lock = private_file::lock(path)?;
        let known = match File::open(path) {
            Ok(file) => Some(read_invite(file).ok()),
            Err(error) if is_absent(&error) => None,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let stored = match known {
            None => StoreOutcome::New,
            Some(Some(known)) if known == *invite => StoreOutcome::Unchanged,
            Some(_) if replace => StoreOutcome::Replaced,
            Some(known) => bail!("{}", refusal(path, known.as_ref(), invite)),
        };
        // An unchanged file may have been readable by others.
        if stored != StoreOutcome::Unchanged || private_file::check_mode(path).is_err() {
            private_file::replace(path, format!("{}\n", invite.to_word()).as_bytes())?;
        }
        Ok(stored)
    }

    /// Creates the directory. A user's directory is private, but the machine's also holds configuration that services
    /// read.
    fn make_directory(&self, file: &Path) -> anyhow::Result<()> {
        let Some(directory) = file.parent() else { return Ok(()) };
        let mode = if self.is_root { 0o755 } else { 0o700 };
        let made = DirBuilder::new().recursive(true).mode(mode).create(directory);
        let made = made.and_then(|()| match self.is_root {
            true => Ok(()),
            false => fs::set_permissions(directory, Permissions::from_mode(mode)),
        });
        made.with_context(|| format!("cannot create the private directory {}", directory.display()))
    }
}

/// The invite that a process last read, for when the file is no longer accessible: a process that has dropped root's
/// privileges cannot reread the file of the user who called `sudo`. Clones share the value. Not a setting.
#[derive(Clone, Default)]
pub struct LastInvite(Arc<Mutex<Memory>>);

#[derive(Default)]
struct Memory {
    invite: Option<Invite>,
    /// Places of the process at its start, before it changed its user.
    places: Option<InvitePlaces>,
}

impl LastInvite {
    /// Returns the stored invite, with the fallback of [`or_last_invite`](Self::or_last_invite).
    ///
    /// Same as [`InvitePlaces::find`].
    pub(crate) fn find_stored(&self) -> anyhow::Result<Invite> {
        let places = self.lock().places.get_or_insert_with(InvitePlaces::for_process).clone();
        self.read_or_reuse(|| places.find())
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the invite that `read` finds, or the last invite if the permission is missing.
    ///
    /// # Errors
    /// `read` fails, unless the permission is missing and there is a last invite.
    pub(crate) fn read_or_reuse(
        &self,
        read: impl FnOnce() -> anyhow::Result<FoundInvite>,
    ) -> anyhow::Result<Invite> {
        let read = read();
        let last = &mut self.lock().invite;
        match (read, &*last) {
            (Ok(found), _) => {
                *last = Some(found.invite.clone());
                Ok(found.invite)
            }
            (Err(error), Some(last)) if is_denied(&error) => {
                tracing::warn!(
                    "cannot reread the invite: {error:#}; privileges were dropped, keeping the current invite (a \
                     restart reads the file)"
                );
                Ok(last.clone())
            }
            (Err(error), _) => Err(error),
        }
    }
}

/// Hides the invite.
impl fmt::Debug for LastInvite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastInvite(..)")
    }
}

/// Does nothing: the value belongs to the flags, which outlive each reading of the file.
impl Layer for LastInvite {
    fn is_unset(&self) -> bool {
        true
    }

    fn with_defaults(self, _: LastInvite) -> LastInvite {
        self
    }
}

fn is_denied(error: &anyhow::Error) -> bool {
    let denied = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::PermissionDenied)
    };
    error.chain().any(denied)
}

/// Returns the servers in an invite, as text.
#[must_use]
pub fn servers(invite: &Invite) -> String {
    let names: Vec<String> = invite.servers.iter().map(Target::to_string).collect();
    names.join(" or ")
}

fn refusal(path: &Path, known: Option<&Invite>, new: &Invite) -> String {
    let shown = path.display();
    let has = match known {
        Some(known) if servers(known) == servers(new) => {
            format!("{shown} has a different invite for the same server")
        }
        Some(known) => format!("{shown} has an invite for another server, {}", servers(known)),
        None => format!("{shown} exists and is not a valid invite"),
    };
    format!("{has}; nothing was changed (`marline join --replace` stores the new one instead)")
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Reads an invite, and at most the length of an invite.
fn read_invite(file: File) -> anyhow::Result<Invite> {
    let mut text = String::new();
    file.take(MAX_INVITE_BYTES).read_to_string(&mut text)?;
    Ok(text.parse()?)
}

impl Place {
    fn machine_place(directory: &Path) -> Place {
        let owner = match directory == Path::new(MACHINE) {
            true => 0,
            // Tests use their own directory.
            false => rustix::process::geteuid().as_raw(),
        };
        Place { path: directory.join(FILE), scope: Scope::Machine, owner }
    }

    /// Opens the file. If it is a pipe, this does not wait for a writer.
    fn open(&self) -> io::Result<File> {
        let flags = OFlags::NONBLOCK.bits() as i32;
        OpenOptions::new().read(true).custom_flags(flags).open(&self.path)
    }

    /// Checks the opened file, which cannot be exchanged in the meantime.
    fn check(&self, file: &File) -> anyhow::Result<()> {
        let shown = self.path.display();
        let meta = file.metadata().with_context(|| format!("cannot read {shown}"))?;
        if !meta.is_file() {
            bail!("{shown} is not a regular file");
        }
        if meta.uid() != self.owner {
            bail!(
                "{shown} belongs to user {}, not to user {}: `chown` it, or name it with --invite-file",
                meta.uid(),
                self.owner
            );
        }
        // An administrator may let a group read the machine's invite.
        let others = if self.scope == Scope::Machine { 0o037 } else { 0o077 };
        let mode = meta.mode() & 0o777;
        if mode & others != 0 {
            bail!("{shown} has mode {mode:o}: others can read it (chmod 600 {shown})");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
