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

/// Maximum length of an error message from the half outside, in bytes.
const MAX_TEXT_BYTES: usize = 4_096;

/// One half of the process.
#[derive(Debug)]
pub enum ProcessRole {
    /// Half that becomes the program.
    Program(Program),
    /// Half that carries the program's traffic.
    Outside(OuterProcess),
}

/// Half that becomes the program.
#[derive(Debug)]
pub struct Program {
    other: OwnedFd,
}

/// Half that stays outside.
#[derive(Debug)]
pub struct OuterProcess {
    other: OwnedFd,
    program: OwnedFd,
}

/// Interface of a program, as received by the half outside.
#[derive(Debug)]
pub struct ProgramInterface {
    /// Descriptor of the interface.
    pub tun: OwnedFd,
    /// Program that has only this interface.
    pub program: RunningProgram,
}

/// Splits the process. Must be called while it has one thread. The half outside has its own session, its standard
/// input and output are /dev/null, and it ignores termination signals: it ends with the program.
///
/// # Errors
/// There are more threads, or the system cannot create another process.
pub fn split() -> anyhow::Result<ProcessRole> {
    let threads = std::fs::read_dir("/proc/self/task").context("/proc is not mounted")?.count();
    if threads != 1 {
        bail!("the process has {threads} threads: it can be split only while it has one");
    }
    let kind = SocketType::SEQPACKET;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.context("cannot create a socket pair")?;
    let me = rustix::process::getpid();
    let between = match fork().context("cannot start another process")? {
        Fork::Parent(between) => between,
        // Intermediate process: its exit orphans the outer half, so this process does not have to reap it.
        Fork::Child => {
            drop(ours);
            return run_outer_half(theirs, me);
        }
    };
    drop(theirs);
    let ended = rustix::process::waitpid(Some(between), WaitOptions::empty());
    ended.context("cannot start the tunnel process")?;
    Ok(ProcessRole::Program(Program { other: ours }))
}

fn run_outer_half(other: OwnedFd, program: Pid) -> anyhow::Result<ProcessRole> {
    // A process group leader cannot create a session, but a child never is one.
    let _ = rustix::process::setsid();
    // The parent still exists, because it is waiting for this process.
    let program = rustix::process::pidfd_open(program, PidfdFlags::empty())?;
    match fork() {
        Ok(Fork::Child) => {}
        Ok(Fork::Parent(_)) => std::process::exit(0),
        Err(_) => std::process::exit(1),
    }
    // A signal to a whole process group is meant to end the program gracefully, for which it needs its network.
    ignore_signals();
    close_inherited()?;
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    Ok(ProcessRole::Outside(OuterProcess { other, program }))
}

impl Program {
    /// Passes the interface to the half outside and waits until it is in use. The calling thread is in the
    /// namespace.
    ///
    /// # Errors
    /// The other half failed.
    pub fn hand_over(self, tun: OwnedFd) -> anyhow::Result<()> {
        let namespace = NamespaceProcesses::for_this_thread()?.to_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [tun.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let bytes = [IoSlice::new(&namespace)];
        rustix::net::sendmsg(&self.other, &bytes, &mut control, SendFlags::NOSIGNAL)
            .context("the tunnel process exited")?;
        drop(tun);
        let mut text = vec![0; MAX_TEXT_BYTES];
        let (len, _) = rustix::net::recv(&self.other, &mut text[..], RecvFlags::empty())?;
        match text[..len].split_first() {
            Some((b'+', _)) => Ok(()),
            Some((_, text)) => bail!("{}", String::from_utf8_lossy(text)),
            None => bail!("the tunnel process has ended"),
        }
    }
}

impl OuterProcess {
    /// Waits for the interface. Returns `None` if there will be none, in which case the other half has reported the
    /// reason.
    ///
    /// # Errors
    /// A system call fails.
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

    /// Notifies the other half that everything is ready.
    pub fn notify_ready(self) {
        self.send_text("+");
    }

    /// Sends an error to the other half, which shows it to the user.
    pub fn failed(self, error: &str) {
        let end = error.floor_char_boundary(MAX_TEXT_BYTES - 1);
        self.send_text(&format!("-{}", &error[..end]));
    }

    fn send_text(&self, text: &str) {
        // If the other half has ended, it does not need the message.
        let _ = rustix::net::send(&self.other, text.as_bytes(), SendFlags::NOSIGNAL);
    }
}
