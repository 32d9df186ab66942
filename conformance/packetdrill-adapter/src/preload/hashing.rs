//! Hash functions for a packetdrill that requests them from the kernel (`AF_ALG`), if the kernel does not offer
//! them.
//!
//! MPTCP scripts need SHA-256 for tokens and HMACs (and SHA-1 for version 0, which some offer). packetdrill uses the
//! kernel's implementation through sockets, and exits if these cannot be opened, as in most containers. The seven
//! calls that it uses are therefore handled here, but only if the kernel rejects the first one. All others are passed
//! to the system unchanged.
//!
//! The blocks below rely on the argument in [`crate::calls`]: pointers are passed as to the C library.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use hmac::{Hmac, KeyInit, Mac};
use libc::{c_int, c_void, size_t, sockaddr, socklen_t, ssize_t};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// `ALG_SET_KEY`.
const SET_KEY: c_int = 1;
/// Offset of the algorithm's name in `sockaddr_alg`.
const NAME_AT: usize = 24;

/// State of one hash computation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Hashing {
    keyed: bool,
    old: bool,
    key: Vec<u8>,
    data: Vec<u8>,
}

impl Hashing {
    fn digest(&self) -> Vec<u8> {
        if self.old {
            return Sha1::digest(&self.data).to_vec();
        }
        if !self.keyed {
            return Sha256::digest(&self.data).to_vec();
        }
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.key) else { return Vec::new() };
        mac.update(&self.data);
        mac.finalize().into_bytes().to_vec()
    }
}

static SOCKETS: Mutex<BTreeMap<c_int, Hashing>> = Mutex::new(BTreeMap::new());

fn with<T>(fd: c_int, f: impl FnOnce(&mut Hashing) -> T) -> Option<T> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&fd).map(f)
}

/// A descriptor that represents a hash computation.
fn open_replacement(hashing: Hashing) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_DGRAM, 0) };
    let fd = fd as c_int;
    if fd >= 0 {
        SOCKETS.lock().unwrap_or_else(PoisonError::into_inner).insert(fd, hashing);
    }
    fd
}

/// # Safety
/// Same as for the C library function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) } as c_int;
    if fd < 0 && domain == libc::AF_ALG {
        return open_replacement(Hashing::default());
    }
    fd
}

/// # Safety
/// Same as for the C library function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let named = with(fd, |hashing| {
        // SAFETY: the address of a hash, of the given length, with the name at this offset.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len as usize) };
        let name = bytes.get(NAME_AT..).unwrap_or_default();
        hashing.keyed = name.starts_with(b"hmac(sha256)");
        hashing.old = name.starts_with(b"sha1\0");
        if hashing.keyed || hashing.old || name.starts_with(b"sha256\0") { 0 } else { -1 }
    });
    // SAFETY: the arguments are the caller's own.
    named.unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_bind, fd, address, len) } as c_int)
}

/// # Safety
/// Same as for the C library function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let keyed = with(fd, |hashing| {
        if name != SET_KEY {
            return -1;
        }
        // SAFETY: a key of this length.
        let key = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len as usize) };
        hashing.key = key.to_vec();
        0
    });
    // SAFETY: the arguments are the caller's own.
    keyed.unwrap_or_else(|| unsafe {
        libc::syscall(libc::SYS_setsockopt, fd, level, name, value, len) as c_int
    })
}

/// # Safety
/// Same as for the C library function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn accept(
    fd: c_int,
    peer: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if let Some(hashing) = with(fd, |hashing| hashing.clone()) {
        return open_replacement(hashing);
    }
    // SAFETY: the arguments are the caller's own.
    unsafe { libc::syscall(libc::SYS_accept, fd, peer, len) as c_int }
}

/// # Safety
/// Same as for the C library function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn send(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    let taken = with(fd, |hashing| {
        if len > 0 {
            // SAFETY: the caller's buffer, with the length that the caller gives.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), len) };
            hashing.data.extend_from_slice(bytes);
        }
        len as ssize_t
    });
    let nobody: *const sockaddr = std::ptr::null();
    // SAFETY: the arguments are the caller's own, and no address.
    taken.unwrap_or_else(|| unsafe {
        libc::syscall(libc::SYS_sendto, fd, buffer, len, flags, nobody, 0) as ssize_t
    })
}

/// # Safety
/// Same as for the C library function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recv(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    if let Some(digest) = with(fd, |hashing| hashing.digest()) {
        let len = len.min(digest.len());
        // SAFETY: the caller's buffer, at least this long.
        unsafe { std::ptr::copy_nonoverlapping(digest.as_ptr(), buffer.cast::<u8>(), len) };
        return len as ssize_t;
    }
    let nobody: *mut sockaddr = std::ptr::null_mut();
    let no_len: *mut socklen_t = std::ptr::null_mut();
    // SAFETY: the arguments are the caller's own, without a buffer for an address.
    unsafe { libc::syscall(libc::SYS_recvfrom, fd, buffer, len, flags, nobody, no_len) as ssize_t }
}

/// # Safety
/// Same as for the C library function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close(fd: c_int) -> c_int {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner).remove(&fd);
    // SAFETY: the caller's own descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_are_those_of_the_standards() {
        // FIPS 180-4's "abc", and RFC 4231's second case.
        let plain = Hashing { data: b"abc".to_vec(), ..Hashing::default() };
        assert!(hex(&plain.digest()).starts_with("ba7816bf8f01cfea414140de5dae2223b00361a3"));
        let old = Hashing { old: true, data: b"abc".to_vec(), ..Hashing::default() };
        assert_eq!(hex(&old.digest()), "a9993e364706816aba3e25717850c26c9cd0d89d");
        let keyed = Hashing {
            old: false,
            keyed: true,
            key: b"Jefe".to_vec(),
            data: b"what do ya want for nothing?".to_vec(),
        };
        assert!(hex(&keyed.digest()).starts_with("5bdcc146bf60754e6a042426089575c75a003f08"));
    }

    #[test]
    fn the_emulated_hash_socket_hashes_its_input() {
        let fd = open_replacement(Hashing::default());
        let mut name = [0u8; 88];
        name[NAME_AT..NAME_AT + 7].copy_from_slice(b"sha256\0");
        let mut out = [0u8; 32];
        // SAFETY: the pointers are those of the arrays above, with their lengths; the descriptors are
        // open until they are closed here.
        unsafe {
            assert_eq!(bind(fd, name.as_ptr().cast(), name.len() as socklen_t), 0);
            let run = accept(fd, std::ptr::null_mut(), std::ptr::null_mut());
            assert_eq!(send(run, b"ab".as_ptr().cast(), 2, 0), 2);
            assert_eq!(send(run, b"c".as_ptr().cast(), 1, 0), 1);
            assert_eq!(recv(run, out.as_mut_ptr().cast(), out.len(), 0), 32);
            assert_eq!((close(run), close(fd)), (0, 0));
        }
        assert!(hex(&out).starts_with("ba7816bf8f01cfea"));
        assert_eq!(with(fd, |_| ()), None);
    }
}
