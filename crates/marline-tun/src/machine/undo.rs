//! A process of its own that gives the machine its routing back if the other one does not come to it.
//!
//! Killed outright, a process undoes nothing. Its interface goes with it, but rules stay, and settings of the system.
//! So a child is made before anything is changed, does nothing but wait for its parent's end, and undoes what the
//! parent had not undone by then: but for a kill switch, unless a person had asked the parent to end. Signals to end
//! do not end it, as they go to whole groups.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use anyhow::Context;
use marline_io::{KeptCapabilities, keep_capabilities};
use rustix::pipe::{PipeFlags, pipe_with};

use super::cleanup::{Extent, clean_up};
use crate::process::{Fork, close_inherited, fork, ignore_signals};

/// The machine is about to be changed.
const ARMED: u8 = b'+';
/// The same, and a kill switch holds from now on.
const HELD: u8 = b'#';
/// A person has asked for the end: what is left is to be undone, the kill switch with it.
const RELEASED: u8 = b'~';
/// All was undone.
const DONE: u8 = b'-';

/// The waiting process, as its parent sees it.
#[derive(Debug)]
pub struct UndoProcess {
    pipe: File,
}

impl UndoProcess {
    /// Starts it. Must be called while this process has one thread, and before it opens what would outlive it there.
    ///
    /// # Errors
    /// The system has no room for another process.
    pub fn start() -> anyhow::Result<UndoProcess> {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).context("no pipe")?;
        match fork().context("no process that would undo the changes")? {
            Fork::Parent(_) => Ok(UndoProcess { pipe: ours.into() }),
            Fork::Child => {
                drop(ours);
                let _ = rustix::process::setsid();
                ignore_signals();
                // Routes and rules are all that it touches; without the rest dropped it still does its work.
                let _ = keep_capabilities(KeptCapabilities::NetAdmin);
                let ended = wait_and_undo(theirs);
                if let Err(error) = &ended {
                    eprintln!("marline: cannot restore the machine's routing: {error:#}");
                }
                std::process::exit(i32::from(ended.is_err()));
            }
        }
    }

    /// From now on there is something to undo.
    pub(super) fn arm(&mut self, kill_switch: bool) -> io::Result<()> {
        self.pipe.write_all(&[if kill_switch { HELD } else { ARMED }])
    }

    /// A person has asked for the end.
    pub(super) fn release(&mut self) {
        // It may be gone: then what is left is undone by this process alone.
        let _ = self.pipe.write_all(&[RELEASED]);
    }

    /// There is nothing to undo any more.
    pub(super) fn disarm(&mut self) {
        // It may be gone, and then does not undo anything either.
        let _ = self.pipe.write_all(&[DONE]);
    }
}

/// What is left to do after a parent that has written this.
fn remaining(written: &[u8]) -> Option<Extent> {
    match written {
        [] | [.., DONE] => None,
        [ARMED, ..] | [HELD, .., RELEASED] => Some(Extent::Everything),
        _ => Some(Extent::AllButSwitch),
    }
}

/// Waits for the parent's end.
fn wait_and_undo(pipe: OwnedFd) -> anyhow::Result<()> {
    close_inherited()?;
    let mut written = Vec::new();
    File::from(pipe).read_to_end(&mut written)?;
    let Some(extent) = remaining(&written) else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cleaned = runtime.block_on(clean_up(extent))?;
    if cleaned.held {
        eprintln!(
            "marline: `marline up` has ended, and its kill switch holds: nothing leaves this machine directly. \
             `sudo marline up` resumes, `sudo marline down` removes the kill switch"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_switch_is_removed_only_if_a_person_has_asked_for_the_end() {
        for (written, extent) in [
            (&b""[..], None),
            (b"+", Some(Extent::Everything)),
            (b"+~", Some(Extent::Everything)),
            (b"+-", None),
            (b"#", Some(Extent::AllButSwitch)),
            (b"#~", Some(Extent::Everything)),
            (b"#-", None),
            (b"#~-", None),
            (b"?", Some(Extent::AllButSwitch)),
        ] {
            assert_eq!(remaining(written), extent, "{written:?}");
        }
    }
}
