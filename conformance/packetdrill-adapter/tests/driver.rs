//! Test that uses the library like packetdrill: it loads the library, requests the table, and drives the machine
//! through it in virtual time.
//!
//! The table is declared again here, as 33 words, so that an error in the order of the library's own declaration is
//! detected.

use std::ffi::{CString, c_char, c_int, c_long, c_longlong, c_ulong, c_void};
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

/// Slots of the table that are used here.
const SOCKET: usize = 2;
const BIND: usize = 3;
const LISTEN: usize = 4;
const ACCEPT: usize = 5;
const READ: usize = 7;
const RECV: usize = 9;
const RECVMSG: usize = 11;
const WRITE: usize = 12;
const SEND: usize = 14;
const FCNTL: usize = 17;
const IOCTL: usize = 18;
const CLOSE: usize = 19;
const SETSOCKOPT: usize = 22;
const POLL: usize = 23;
const NETDEV_SEND: usize = 24;
const NETDEV_RECEIVE: usize = 25;
const USLEEP: usize = 26;
const GETTIMEOFDAY: usize = 27;
const EPOLL_CREATE: usize = 28;
const EPOLL_CTL: usize = 29;
const EPOLL_WAIT: usize = 30;
const SPLICE: usize = 32;

type Ud = *mut c_void;

/// The table, as words.
struct Table([usize; 33]);

/// Calls a function of the table. The caller must give the right types, as in C.
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
    // SAFETY: our own library, loaded as packetdrill does. Its function takes a C string and 33 words.
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
    /// The function in a slot of the table.
    fn function<F: Copy>(&self, place: usize) -> F {
        assert_eq!(size_of::<F>(), size_of::<usize>());
        // SAFETY: by packetdrill's interface, the word is a function of the type that the caller gives.
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

    /// The next packet, and its sending time.
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

    fn set_option(&self, fd: c_int, level: c_int, name: c_int, value: c_int) -> c_int {
        call!(self, SETSOCKOPT, (c_int, c_int, c_int, *const c_int, u32) -> c_int,
            fd, level, name, &raw const value, 4)
    }

    fn accept(&self, fd: c_int) -> c_int {
        let (peer, len): (*mut c_void, *mut u32) = (std::ptr::null_mut(), std::ptr::null_mut());
        call!(self, ACCEPT, (c_int, *mut c_void, *mut u32) -> c_int, fd, peer, len)
    }
}

/// A packet from the client.
fn packet(flags: TcpFlags, seq: u32, ack: u32, options: &TcpOptions, payload: &[u8]) -> Vec<u8> {
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
    emit_ip(CLIENT.into(), SERVER.into(), PROTOCOL_TCP, 0, segment.len(), &mut packet)
        .expect("a packet");
    packet.extend_from_slice(&segment);
    packet
}

/// Packet sent by the server: time, header, options and payload.
fn sent(table: &Table) -> (i64, TcpHeader, TcpOptions, Vec<u8>) {
    let (at, bytes) = table.receive().expect("a packet");
    let ip = IpPacket::parse(&bytes).expect("an IP packet");
    assert_eq!((ip.src, ip.dst), (SERVER.into(), CLIENT.into()));
    let segment = TcpSegment::parse(ip.payload).expect("a segment");
    (at, segment.header, segment.options.clone(), segment.payload.to_vec())
}

/// Handshake of plain TCP. Returns the numbers to continue with.
fn handshake(table: &Table, offer: &TcpOptions) -> (u32, TcpOptions) {
    table.send(&packet(TcpFlags::SYN, 100, 0, offer, &[]));
    let (_, header, options, _) = sent(table);
    assert_eq!(header.flags, TcpFlags::SYN.with(TcpFlags::ACK));
    assert_eq!(header.ack, SeqNum(101));
    (header.seq.0.wrapping_add(1), options)
}

/// A process has only one machine, so the parts run one after the other.
#[test]
fn a_program_drives_the_core_through_the_table() {
    echo_and_close();
    a_blocking_call_waits_on_its_own_thread();
    multipath_is_offered_and_agreed_on();
    what_waits_can_be_asked_peeked_at_and_watched();
    buffers_that_are_free_are_told();
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
    table.send(&packet(TcpFlags::ACK, 101, seq, &none, &[]));
    let conn = table.accept(fd);
    assert!(conn >= 0 && conn != fd);
    table.send(&packet(TcpFlags::ACK.with(TcpFlags::PSH), 101, seq, &none, b"hello"));
    let (_, header, _, payload) = sent(&table);
    assert_eq!((header.ack, payload.len()), (SeqNum(106), 0), "acknowledged immediately");
    let mut out = [0; 16];
    assert_eq!(table.read(conn, &mut out), 5);
    assert_eq!(table.write(conn, &out[..5]), 5);
    let (first_at, header, _, payload) = sent(&table);
    assert_eq!((header.seq, payload.as_slice()), (SeqNum(seq), &b"hello"[..]));
    // Without an acknowledgment it is retransmitted, seconds later in virtual time but immediately in real time.
    let real = Instant::now();
    let (again_at, header, _, payload) = sent(&table);
    assert_eq!((header.seq, payload.as_slice()), (SeqNum(seq), &b"hello"[..]));
    assert!((100_000..2_000_000).contains(&(again_at - first_at)), "{}", again_at - first_at);
    assert!(real.elapsed() < Duration::from_secs(1), "virtual time does not wait");
    table.send(&packet(TcpFlags::ACK, 106, seq + 5, &none, &[]));
    assert_eq!(call!(table, CLOSE, (c_int) -> c_int, conn), 0);
    let (_, header, _, _) = sent(&table);
    assert_eq!(header.flags, TcpFlags::FIN.with(TcpFlags::ACK));
    assert_eq!(call!(table, CLOSE, (c_int) -> c_int, fd), 0);
    let before = table.now_us();
    assert!(table.now_us() > before, "the clock advances when it is read");
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
        table.send(&packet(TcpFlags::ACK, 101, seq, &TcpOptions::default(), &[]));
        table.sleep(500_000);
        let (conn, at) = accepted.join().expect("the call returned");
        assert!(conn >= 0);
        let waited = at - start;
        assert!((200_000..210_000).contains(&waited), "{waited}: time advanced before the thread");
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
    // A listener of plain TCP does not negotiate Multipath TCP.
    let table = load("local=192.168.0.1");
    let fd = table.socket(libc::IPPROTO_TCP);
    table.listen_on(fd);
    let (_, options) = handshake(&table, &offer);
    assert!(options.mptcp.is_empty());
}

/// A listener, and an established connection from it.
fn connected(table: &Table) -> (c_int, u32) {
    let fd = table.socket(libc::IPPROTO_TCP);
    table.listen_on(fd);
    assert_eq!(table.set_option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1), 0);
    let offer = TcpOptions { mss: Some(1_000), sack_permitted: true, ..TcpOptions::default() };
    let (seq, _) = handshake(table, &offer);
    table.send(&packet(TcpFlags::ACK, 101, seq, &TcpOptions::default(), &[]));
    (table.accept(fd), seq)
}

fn what_waits_can_be_asked_peeked_at_and_watched() {
    let table = load("local=192.168.0.1");
    let (conn, seq) = connected(&table);
    let epoll = call!(table, EPOLL_CREATE, (c_int) -> c_int, 1);
    let wanted = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET) as u32;
    let mut event = libc::epoll_event { events: wanted, u64: 7 };
    let watched = call!(table, EPOLL_CTL, (c_int, c_int, c_int, *mut libc::epoll_event) -> c_int,
        epoll, libc::EPOLL_CTL_ADD, conn, &raw mut event);
    assert_eq!(watched, 0);
    let news = || {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let count = call!(table, EPOLL_WAIT, (c_int, *mut libc::epoll_event, c_int, c_int) -> c_int,
            epoll, &raw mut event, 1, 0);
        (count, event.events as c_int)
    };
    assert_eq!(news(), (1, libc::EPOLLOUT));
    assert_eq!(news(), (0, 0), "an edge is reported once");
    let none = TcpOptions::default();
    table.send(&packet(TcpFlags::ACK, 101, seq, &none, b"abcdef"));
    assert_eq!(news(), (1, libc::EPOLLIN | libc::EPOLLOUT));
    assert_eq!(news(), (0, 0));
    let mut waits: c_int = -1;
    let asked = call!(table, IOCTL, (c_int, c_ulong, *mut c_int) -> c_int, conn, libc::FIONREAD, &raw mut waits);
    assert_eq!((asked, waits), (0, 6));
    let mut out = [0; 4];
    let peeked = call!(table, RECV, (c_int, *mut u8, usize, c_int) -> isize,
        conn, out.as_mut_ptr(), out.len(), libc::MSG_PEEK);
    assert_eq!((peeked, &out), (4, b"abcd"));
    assert_eq!((table.read(conn, &mut out), &out), (4, b"abcd"), "still readable");
    assert_eq!(news(), (0, 0), "reading is not an event");
    table.send(&packet(TcpFlags::ACK, 107, seq, &none, b"g"));
    assert_eq!(news(), (1, libc::EPOLLIN | libc::EPOLLOUT));
    assert_eq!(call!(table, CLOSE, (c_int) -> c_int, epoll), 0);
}

fn buffers_that_are_free_are_told() {
    let table = load("local=192.168.0.1");
    let (conn, seq) = connected(&table);
    let report = || {
        let mut control = [0u8; 128];
        // SAFETY: a structure of integers and pointers, for which zeros are fine.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = control.len();
        let got = call!(table, RECVMSG, (c_int, *mut libc::msghdr, c_int) -> isize,
            conn, &raw mut message, libc::MSG_ERRQUEUE);
        (got, message.msg_flags, control[24..32].to_vec())
    };
    assert_eq!((report().0, errno()), (-1, libc::EAGAIN));
    for _ in 0..2 {
        let sent = call!(table, SEND, (c_int, *const u8, usize, c_int) -> isize,
            conn, b"data".as_ptr(), 4, libc::MSG_ZEROCOPY);
        assert_eq!(sent, 4);
    }
    assert_eq!(report().0, -1, "nothing is acknowledged");
    // The second write waits for an answer to the first (Nagle).
    for acked in [4, 8] {
        table.send(&packet(TcpFlags::ACK, 101, seq + acked, &TcpOptions::default(), &[]));
    }
    let (got, flags, which) = report();
    assert_eq!((got, flags), (0, libc::MSG_ERRQUEUE));
    assert_eq!(which, [0, 0, 0, 0, 1, 0, 0, 0], "from the first write to the second");
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
    assert_eq!((spliced, errno()), (-1, libc::EINVAL), "neither end is our socket");
    let unknown = table.set_option(fd, libc::SOL_TCP, 99, 1);
    assert_eq!((unknown, errno()), (-1, libc::ENOPROTOOPT));
    let asked = call!(table, IOCTL, (c_int, c_ulong, *mut c_int) -> c_int, fd, 0xffff, std::ptr::null_mut());
    assert_eq!((asked, errno()), (-1, libc::ENOTTY));
    let watched = call!(table, EPOLL_CTL, (c_int, c_int, c_int, *mut libc::epoll_event) -> c_int,
        99_999, libc::EPOLL_CTL_ADD, fd, std::ptr::null_mut());
    assert_eq!((watched, errno()), (-1, libc::EBADF));
    let mut nothing = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let before = table.now_us();
    let ready = call!(table, POLL, (*mut libc::pollfd, libc::nfds_t, c_int) -> c_int, &raw mut nothing, 1, 50);
    assert_eq!((ready, nothing.revents), (1, libc::POLLHUP), "neither connected nor listening");
    assert!(table.now_us() - before < 1_000);
    assert_eq!(table.receive(), None, "without a packet, the wait ends");
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
