//! Split of the process into the half that becomes the program and the half outside.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, bail};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, WaitOptions};

use super::processes::NamespaceProcesses;
use super::running::RunningProgram;
use crate::process::{Fork, close_inherited, fork, ignore_signals};

/// Bytes of an error that the half outside tells the other.
const TEXT: usize = 4_096;

/// One half of the process.
#[derive(Debug)]
pub enum Half {
    /// What becomes the program.
    Program(Program),
    /// What carries its traffic.
    Outside(Outside),
}

/// The half that becomes the program.
#[derive(Debug)]
pub struct Program {
    other: OwnedFd,
}

/// The half that stays outside.
#[derive(Debug)]
pub struct Outside {
    other: OwnedFd,
    program: OwnedFd,
}

/// The interface of a program, as the half outside gets it.
#[derive(Debug)]
pub struct ProgramInterface {
    /// The interface.
    pub tun: OwnedFd,
    /// What has nothing but this interface.
    pub program: RunningProgram,
}

/// Splits the process. Must be called while it has one thread. The half outside is a session of its own, its
/// standard input and output lead nowhere, and signals to end do not end it: it ends with the program.
///
/// # Errors
/// There are more threads, or the system has no room for another process.
pub fn split() -> anyhow::Result<Half> {
    let threads = std::fs::read_dir("/proc/self/task").context("/proc is not mounted")?.count();
    if threads != 1 {
        bail!("the process has {threads} threads: it can be split only while it has one");
    }
    let kind = SocketType::SEQPACKET;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.context("no socket for the other half")?;
    let me = rustix::process::getpid();
    let between = match fork().context("no other process")? {
        Fork::Parent(between) => between,
        // Between the two: its end makes the half outside nobody's child.
        Fork::Child => {
            drop(ours);
            return become_outside(theirs, me);
        }
    };
    drop(theirs);
    let ended = rustix::process::waitpid(Some(between), WaitOptions::empty());
    ended.context("the other half was not started")?;
    Ok(Half::Program(Program { other: ours }))
}

fn become_outside(other: OwnedFd, program: Pid) -> anyhow::Result<Half> {
    // A new session must not lead a group already, which a child never does.
    let _ = rustix::process::setsid();
    // While it waits for this process it cannot be gone.
    let program = rustix::process::pidfd_open(program, PidfdFlags::empty())?;
    match fork() {
        Ok(Fork::Child) => {}
        Ok(Fork::Parent(_)) => std::process::exit(0),
        Err(_) => std::process::exit(1),
    }
    // Whoever ends a group of processes wants the program to end in good order, for which it needs its network.
    ignore_signals();
    close_inherited()?;
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    Ok(Half::Outside(Outside { other, program }))
}

impl Program {
    /// Hands the interface to the half outside and waits until that carries it. The calling thread is in the
    /// namespace.
    ///
    /// # Errors
    /// What went wrong in the other half.
    pub fn hand_over(self, tun: OwnedFd) -> anyhow::Result<()> {
        let namespace = NamespaceProcesses::of_this_thread()?.to_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [tun.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let bytes = [IoSlice::new(&namespace)];
        rustix::net::sendmsg(&self.other, &bytes, &mut control, SendFlags::NOSIGNAL)
            .context("the carrying process exited")?;
        drop(tun);
        let mut text = vec![0; TEXT];
        let (len, _) = rustix::net::recv(&self.other, &mut text[..], RecvFlags::empty())?;
        match text[..len].split_first() {
            Some((b'+', _)) => Ok(()),
            Some((_, text)) => bail!("{}", String::from_utf8_lossy(text)),
            None => bail!("the carrying process has ended"),
        }
    }
}

impl Outside {
    /// Waits for the interface. `None`: there will be none, and the other half has said why.
    ///
    /// # Errors
    /// The system's.
    pub fn receive_interface(&self) -> io::Result<Option<ProgramInterface>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut namespace = [0; NamespaceProcesses::BYTES];
        let mut bytes = [IoSliceMut::new(&mut namespace)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(&self.other, &mut bytes, &mut control, flags)?;
        let mut descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        let tun = descriptors.next().and_then(|mut rights| rights.next());
        let Some(tun) = tun.filter(|_| received.bytes == NamespaceProcesses::BYTES) else {
            return Ok(None);
        };
        let program = RunningProgram::new(
            self.program.try_clone()?,
            NamespaceProcesses::from_bytes(namespace),
        );
        Ok(Some(ProgramInterface { tun, program }))
    }

    /// Tells the other half that all is ready.
    pub fn ready(self) {
        self.tell("+");
    }

    /// Tells the other half what went wrong; it says so to the user.
    pub fn failed(self, error: &str) {
        let end = error.floor_char_boundary(TEXT - 1);
        self.tell(&format!("-{}", &error[..end]));
    }

    fn tell(&self, text: &str) {
        // Who is gone need not know.
        let _ = rustix::net::send(&self.other, text.as_bytes(), SendFlags::NOSIGNAL);
    }
}
