//! The library as packetdrill uses it: loaded, asked for its table, and driven through it in virtual time.
//!
//! The table is declared here once more, as 33 words, so that a slip in the order of the library's own
//! declaration shows.

use std::ffi::{CString, c_char, c_int, c_long, c_longlong, c_void};
use std::mem;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use marline_wire::mptcp::{MpCapable, MpCapableForm, MptcpOption};
use marline_wire::{
    IpPacket, PROTOCOL_TCP, SeqNum, TcpFlags, TcpHeader, TcpOptions, TcpSegment, emit_ip,
    fill_tcp_checksum,
};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PORT: u16 = 8_080;

/// Places of the table that are used here.
const SOCKET: usize = 2;
const BIND: usize = 3;
const LISTEN: usize = 4;
const ACCEPT: usize = 5;
const READ: usize = 7;
const WRITE: usize = 12;
const FCNTL: usize = 17;
const CLOSE: usize = 19;
const POLL: usize = 23;
const NETDEV_SEND: usize = 24;
const NETDEV_RECEIVE: usize = 25;
const USLEEP: usize = 26;
const GETTIMEOFDAY: usize = 27;
const SPLICE: usize = 32;

type Ud = *mut c_void;

/// The table, as words.
struct Table([usize; 33]);

/// A function of the table. Types are the caller's to get right, as in C.
macro_rules! call {
    ($table:expr, $place:expr, ($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        let function: extern "C" fn(Ud, $($type),*) -> $result = $table.function($place);
        function($table.0[0] as Ud, $($argument),*)
    }};
}

fn library() -> PathBuf {
    let own = std::env::current_exe().expect("this test's path");
    let deps = own.parent().expect("a directory");
    let name = "libpacketdrill_adapter.so";
    let places = [deps.join(name), deps.parent().expect("a directory").join(name)];
    places.into_iter().find(|path| path.is_file()).expect("the library was built with its tests")
}

fn load(flags: &str) -> Table {
    let path = CString::new(library().to_str().expect("a path")).expect("no zero in it");
    let flags = CString::new(flags).expect("no zero in it");
    let mut table = Table([0; 33]);
    // SAFETY: a library of ours, loaded as packetdrill does; its function takes a C string and 33 words.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "cannot be loaded");
        let init = libc::dlsym(handle, c"packetdrill_interface_init".as_ptr());
        assert!(!init.is_null(), "no packetdrill_interface_init");
        let init: extern "C" fn(*const c_char, *mut usize) = mem::transmute(init);
        init(flags.as_ptr(), table.0.as_mut_ptr());
    }
    assert!(table.0[1..].iter().all(|word| *word != 0), "a slot is empty");
    table
}

impl Table {
    /// The function at a place of the table.
    fn function<F: Copy>(&self, place: usize) -> F {
        assert_eq!(size_of::<F>(), size_of::<usize>());
        // SAFETY: the word is a function of the type that the caller names, by packetdrill's interface.
        unsafe { mem::transmute_copy(&self.0[place]) }
    }

    fn socket(&self, protocol: c_int) -> c_int {
        let (domain, kind) = (libc::AF_INET, libc::SOCK_STREAM);
        call!(self, SOCKET, (c_int, c_int, c_int) -> c_int, domain, kind, protocol)
    }

    fn listen_on(&self, fd: c_int) {
        // SAFETY: a structure of integers, for which zeros are fine.
        let mut any: libc::sockaddr_in = unsafe { mem::zeroed() };
        any.sin_family = libc::AF_INET as libc::sa_family_t;
        any.sin_port = PORT.to_be();
        let len = size_of::<libc::sockaddr_in>() as u32;
        assert_eq!(
            call!(self, BIND, (c_int, *const libc::sockaddr_in, u32) -> c_int, fd, &raw const any, len),
            0
        );
        assert_eq!(call!(self, LISTEN, (c_int, c_int) -> c_int, fd, 1), 0);
    }

    fn send(&self, packet: &[u8]) {
        let sent =
            call!(self, NETDEV_SEND, (*const u8, usize) -> c_int, packet.as_ptr(), packet.len());
        assert_eq!(sent, 0);
    }

    /// The next packet, and when it left.
    fn receive(&self) -> Option<(i64, Vec<u8>)> {
        let mut packet = vec![0u8; 4_096];
        let (mut count, mut at): (usize, c_longlong) = (packet.len(), 0);
        let got = call!(self, NETDEV_RECEIVE, (*mut u8, *mut usize, *mut c_longlong) -> c_int,
            packet.as_mut_ptr(), &raw mut count, &raw mut at);
        assert_eq!(got, 0);
        packet.truncate(count);
        (count > 0).then_some((at, packet))
    }

    fn now_us(&self) -> i64 {
        // SAFETY: a structure of integers, for which zeros are fine.
        let mut time: libc::timeval = unsafe { mem::zeroed() };
        let zone: *mut c_void = std::ptr::null_mut();
        call!(self, GETTIMEOFDAY, (*mut libc::timeval, *mut c_void) -> c_int, &raw mut time, zone);
        time.tv_sec * 1_000_000 + time.tv_usec
    }

    fn sleep(&self, us: u32) {
        assert_eq!(call!(self, USLEEP, (u32) -> c_int, us), 0);
    }

    fn write(&self, fd: c_int, bytes: &[u8]) -> isize {
        call!(self, WRITE, (c_int, *const u8, usize) -> isize, fd, bytes.as_ptr(), bytes.len())
    }

    fn read(&self, fd: c_int, out: &mut [u8]) -> isize {
        call!(self, READ, (c_int, *mut u8, usize) -> isize, fd, out.as_mut_ptr(), out.len())
    }

    fn accept(&self, fd: c_int) -> c_int {
        let (peer, len): (*mut c_void, *mut u32) = (std::ptr::null_mut(), std::ptr::null_mut());
        call!(self, ACCEPT, (c_int, *mut c_void, *mut u32) -> c_int, fd, peer, len)
    }
}

/// A packet from the client.
fn packet(
    flags: TcpFlags,
    (seq, ack): (u32, u32),
    options: &TcpOptions,
    payload: &[u8],
) -> Vec<u8> {
    let header = TcpHeader {
        src_port: 40_000,
        dst_port: PORT,
        seq: SeqNum(seq),
        ack: SeqNum(ack),
        flags,
        window: 60_000,
        urgent: 0,
    };
    let mut segment = vec![0; 20 + options.encoded_len() + payload.len()];
    let at = header.emit(options, &mut segment).expect("options that fit");
    segment[at..].copy_from_slice(payload);
    fill_tcp_checksum(Some((CLIENT.into(), SERVER.into())), &mut segment);
    let mut packet = vec![0; 20];
    emit_ip((CLIENT.into(), SERVER.into()), PROTOCOL_TCP, 0, segment.len(), &mut packet)
        .expect("a packet");
    packet.extend_from_slice(&segment);
    packet
}

/// What the server sent: header, options and payload.
fn sent(table: &Table) -> (i64, TcpHeader, TcpOptions, Vec<u8>) {
    let (at, bytes) = table.receive().expect("a packet");
    let ip = IpPacket::parse(&bytes).expect("an IP packet");
    assert_eq!((ip.src, ip.dst), (SERVER.into(), CLIENT.into()));
    let segment = TcpSegment::parse(ip.payload).expect("a segment");
    (at, segment.header, segment.options.clone(), segment.payload.to_vec())
}

/// Handshake of plain TCP; returns the numbers to go on with.
fn handshake(table: &Table, offer: &TcpOptions) -> (u32, TcpOptions) {
    table.send(&packet(TcpFlags::SYN, (100, 0), offer, &[]));
    let (_, header, options, _) = sent(table);
    assert_eq!(header.flags, TcpFlags::SYN.with(TcpFlags::ACK));
    assert_eq!(header.ack, SeqNum(101));
    (header.seq.0.wrapping_add(1), options)
}

/// One process has one machine: the parts follow each other.
#[test]
fn a_program_drives_the_core_through_the_table() {
    echo_and_close();
    a_blocking_call_waits_on_its_own_thread();
    multipath_is_offered_and_agreed_on();
    what_is_not_there_is_refused();
}

fn echo_and_close() {
    let table = load("local=192.168.0.1");
    let fd = table.socket(libc::IPPROTO_TCP);
    assert!(fd >= 0);
    table.listen_on(fd);
    let offer = TcpOptions { mss: Some(1_000), sack_permitted: true, ..TcpOptions::default() };
    let (seq, options) = handshake(&table, &offer);
    assert_eq!(
        (options.mss, options.sack_permitted, options.timestamps),
        (Some(1_460), true, None)
    );
    let none = TcpOptions::default();
    table.send(&packet(TcpFlags::ACK, (101, seq), &none, &[]));
    let conn = table.accept(fd);
    assert!(conn >= 0 && conn != fd);
    table.send(&packet(TcpFlags::ACK.with(TcpFlags::PSH), (101, seq), &none, b"hello"));
    let (_, header, _, payload) = sent(&table);
    assert_eq!((header.ack, payload.len()), (SeqNum(106), 0), "acknowledged at once");
    let mut out = [0; 16];
    assert_eq!(table.read(conn, &mut out), 5);
    assert_eq!(table.write(conn, &out[..5]), 5);
    let (first_at, header, _, payload) = sent(&table);
    assert_eq!((header.seq, payload.as_slice()), (SeqNum(seq), &b"hello"[..]));
    // Nobody acknowledges: it comes again, seconds later for the script, at once for us.
    let real = Instant::now();
    let (again_at, header, _, payload) = sent(&table);
    assert_eq!((header.seq, payload.as_slice()), (SeqNum(seq), &b"hello"[..]));
    assert!((100_000..2_000_000).contains(&(again_at - first_at)), "{}", again_at - first_at);
    assert!(real.elapsed() < Duration::from_secs(1), "virtual time does not wait");
    table.send(&packet(TcpFlags::ACK, (106, seq + 5), &none, &[]));
    assert_eq!(call!(table, CLOSE, (c_int) -> c_int, conn), 0);
    let (_, header, _, _) = sent(&table);
    assert_eq!(header.flags, TcpFlags::FIN.with(TcpFlags::ACK));
    assert_eq!(call!(table, CLOSE, (c_int) -> c_int, fd), 0);
    let before = table.now_us();
    assert!(table.now_us() > before, "a clock that is looked at moves");
}

fn a_blocking_call_waits_on_its_own_thread() {
    let table = load("local=192.168.0.1");
    let fd = table.socket(libc::IPPROTO_TCP);
    table.listen_on(fd);
    let start = table.now_us();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let conn = table.accept(fd);
            (conn, table.now_us())
        });
        table.sleep(100_000);
        let offer = TcpOptions { mss: Some(1_000), ..TcpOptions::default() };
        let (seq, _) = handshake(&table, &offer);
        table.sleep(100_000);
        table.send(&packet(TcpFlags::ACK, (101, seq), &TcpOptions::default(), &[]));
        table.sleep(500_000);
        let (conn, at) = accepted.join().expect("it came back");
        assert!(conn >= 0);
        let waited = at - start;
        assert!((200_000..210_000).contains(&waited), "{waited}: time ran ahead of the thread");
    });
}

fn multipath_is_offered_and_agreed_on() {
    let table = load("local=192.168.0.1");
    let fd = table.socket(libc::IPPROTO_MPTCP);
    table.listen_on(fd);
    let mut offer = TcpOptions { mss: Some(1_000), ..TcpOptions::default() };
    offer.mptcp.push(MptcpOption::Capable(MpCapable {
        version: 1,
        checksum_required: false,
        extensibility: false,
        deny_join_id0: false,
        hmac_sha256: true,
        form: MpCapableForm::Syn,
    }));
    let (_, options) = handshake(&table, &offer);
    let form = options.mptcp.capable().map(|capable| capable.form);
    assert!(matches!(form, Some(MpCapableForm::SynAck { .. })), "{form:?}");
    // A listener of plain TCP does not agree.
    let table = load("local=192.168.0.1");
    let fd = table.socket(libc::IPPROTO_TCP);
    table.listen_on(fd);
    let (_, options) = handshake(&table, &offer);
    assert!(options.mptcp.is_empty());
}

fn what_is_not_there_is_refused() {
    let table = load("");
    let fd = table.socket(libc::IPPROTO_TCP);
    let flags = call!(table, FCNTL, (c_int, c_int, c_long) -> c_int, fd, libc::F_GETFL, 0);
    assert_eq!(flags, libc::O_RDWR);
    let nonblocking = c_long::from(libc::O_RDWR | libc::O_NONBLOCK);
    assert_eq!(
        call!(table, FCNTL, (c_int, c_int, c_long) -> c_int, fd, libc::F_SETFL, nonblocking),
        0
    );
    assert_eq!(table.read(fd, &mut [0; 4]), -1);
    assert_eq!(errno(), libc::ENOTCONN);
    assert_eq!(table.read(99_999, &mut [0; 4]), -1);
    assert_eq!(errno(), libc::EBADF);
    let null: *const u8 = std::ptr::null();
    assert_eq!(call!(table, WRITE, (c_int, *const u8, usize) -> isize, fd, null, 4), -1);
    assert_eq!(errno(), libc::EFAULT);
    let no: *mut c_void = std::ptr::null_mut();
    let spliced =
        call!(table, SPLICE, (c_int, Ud, c_int, Ud, usize, u32) -> isize, 0, no, 1, no, 1, 0);
    assert_eq!((spliced, errno()), (-1, libc::ENOSYS));
    let mut nothing = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let before = table.now_us();
    let ready = call!(table, POLL, (*mut libc::pollfd, libc::nfds_t, c_int) -> c_int, &raw mut nothing, 1, 50);
    assert_eq!((ready, nothing.revents), (1, libc::POLLHUP), "neither connected nor listening");
    assert!(table.now_us() - before < 1_000);
    assert_eq!(table.receive(), None, "there is no packet, and the wait ends");
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
