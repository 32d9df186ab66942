//! Separate process that restores the machine's routing if the main process cannot.
//!
//! A killed process cannot undo anything. Its interface disappears, but rules and system settings stay. So a child is
//! created before anything is changed. It waits for its parent's end and then undoes the remaining changes. It leaves a
//! kill switch on unless the user had requested the end. It ignores termination signals, because they are sent to whole
//! process groups.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use anyhow::Context;
use marline_io::{KeptCapabilities, keep_capabilities};
use rustix::pipe::{PipeFlags, pipe_with};

use super::cleanup::{CleanupExtent, clean_up};
use crate::process::{Fork, close_inherited, fork, ignore_signals};

/// Message: the machine is about to be changed.
const ARM_MESSAGE: u8 = b'+';
/// Message: the machine is about to be changed, and a kill switch is active.
const SWITCH_ACTIVE: u8 = b'#';
/// Message: the user requested the end, so all remaining changes must be undone, including the kill switch.
const RELEASED: u8 = b'~';
/// Message: everything was undone.
const DONE: u8 = b'-';

/// Handle of the waiting process, for its parent.
#[derive(Debug)]
pub struct UndoProcess {
    pipe: File,
}

impl UndoProcess {
    /// Starts the process. Must be called while this process has one thread, and before it opens descriptors that the
    /// child must not inherit.
    ///
    /// # Errors
    /// The system cannot create another process.
    pub fn start() -> anyhow::Result<UndoProcess> {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).context("cannot create a pipe")?;
        match fork().context("cannot start the cleanup process")? {
            Fork::Parent(_) => Ok(UndoProcess { pipe: ours.into() }),
            Fork::Child => {
                drop(ours);
                let _ = rustix::process::setsid();
                ignore_signals();
                // The child changes only routes and rules. If the other capabilities cannot be dropped, it still works.
                let _ = keep_capabilities(KeptCapabilities::NetAdmin);
                let ended = undo_after_parent(theirs);
                if let Err(error) = &ended {
                    eprintln!("marline: cannot restore the machine's routing: {error:#}");
                }
                std::process::exit(i32::from(ended.is_err()));
            }
        }
    }

    /// Reports that there are changes to undo.
    pub(super) fn arm(&mut self, kill_switch: bool) -> io::Result<()> {
        self.pipe.write_all(&[if kill_switch { SWITCH_ACTIVE } else { ARM_MESSAGE }])
    }

    /// Reports that the user requested the end.
    pub(super) fn release(&mut self) {
        // If the other process has ended, this process alone undoes the rest.
        let _ = self.pipe.write_all(&[RELEASED]);
    }

    /// Reports that nothing is left to undo.
    pub(super) fn disarm(&mut self) {
        // If the other process has ended, it does not undo anything either.
        let _ = self.pipe.write_all(&[DONE]);
    }
}

/// Returns the extent of the cleanup after a parent that has written these bytes.
fn parse_extent(written: &[u8]) -> Option<CleanupExtent> {
    match written {
        [] | [.., DONE] => None,
        [ARM_MESSAGE, ..] | [SWITCH_ACTIVE, .., RELEASED] => Some(CleanupExtent::Everything),
        _ => Some(CleanupExtent::AllButSwitch),
    }
}

/// Waits for the parent's end, then undoes the rest.
fn undo_after_parent(pipe: OwnedFd) -> anyhow::Result<()> {
    close_inherited()?;
    let mut written = Vec::new();
    File::from(pipe).read_to_end(&mut written)?;
    let Some(extent) = parse_extent(&written) else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cleaned = runtime.block_on(clean_up(extent))?;
    if cleaned.held {
        eprintln!(
            "marline: `marline up` has ended, and its kill switch stays on: all traffic outside the tunnel \
             is blocked. `sudo marline up` restores the tunnel; `sudo marline down` removes the kill switch"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_switch_is_removed_only_at_the_users_request() {
        for (written, extent) in [
            (&b""[..], None),
            (b"+", Some(CleanupExtent::Everything)),
            (b"+~", Some(CleanupExtent::Everything)),
            (b"+-", None),
            (b"#", Some(CleanupExtent::AllButSwitch)),
            (b"#~", Some(CleanupExtent::Everything)),
            (b"#-", None),
            (b"#~-", None),
            (b"?", Some(CleanupExtent::AllButSwitch)),
        ] {
            assert_eq!(parse_extent(written), extent, "{written:?}");
        }
    }
}
