//! Memory of Fast Open at a client (RFC 7413 sections 4.1.3 and 4.2). For each pair of addresses it keeps the
//! server's cookie, its segment size, and whether the network drops segments with Fast Open.
//!
//! The local address identifies the network, as in `network_memory.rs`, and a server creates its cookie for that
//! address only.
//!
//! A SYN with the option or with data may be lost like any other. But if its repeat without both is answered twice in
//! a row, a middlebox drops such SYNs (RFC 7413 section 7.1; Linux also requires two). Fast Open is then not used on
//! the pair for an hour. A cookie in any answer, or an acknowledgment of the data, shows that Fast Open passes.
//!
//! A server that answers a request without a cookie may know only the experimental form of the option, so the next
//! request uses that form, once.

use core::net::IpAddr;
use std::collections::VecDeque;

use marline_time::{Duration, Instant};
use marline_wire::{FastOpenOption, MAX_OPTIONS, TCP_HEADER_LEN};

use crate::{FastOpen, PathAddresses};

/// Limit on remembered pairs of addresses; the least recently used one is evicted.
const MAX_ENTRIES: usize = 256;
/// Number of consecutive SYNs answered only after a repeat without Fast Open that indicates a middlebox.
const MIN_CONSECUTIVE_LOSSES: u8 = 2;
/// Time for which Fast Open is avoided on a pair with such a middlebox.
const AVOID_TIME: Duration = Duration::from_secs(3_600);

/// Form of the next request.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum RequestForm {
    /// The assigned option number; the experimental form follows if there is no cookie.
    #[default]
    First,
    /// The experimental form.
    Experimental,
    /// The assigned option number, with no further change of form.
    Settled,
}

/// State of a pair of addresses.
#[derive(Copy, Clone, Debug)]
struct Entry {
    path: PathAddresses,
    cookie: Option<FastOpenOption>,
    /// Payload of a full segment to the server, in bytes, from its last answer with Fast Open.
    mss: u16,
    /// True if the server supports Multipath TCP on any port; `None` if it was never offered.
    multipath: Option<bool>,
    form: RequestForm,
    /// Consecutive lost SYNs.
    lost: u8,
    avoided_until: Instant,
}

/// Use of Fast Open in a SYN between two addresses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// An ordinary SYN: Fast Open does not pass.
    Ordinary,
    /// A SYN without data that requests a cookie.
    Ask(FastOpenOption),
    /// A SYN with the cookie, if one is needed, and data, for a server whose segments have at most this many payload
    /// bytes.
    Send(Option<FastOpenOption>, u16),
}

/// Room for payload, in bytes, in a SYN to a server that announced `mss`, if our segments may have `ours` bytes
/// including the header. RFC 7413 section 4.2.1 requires room for all possible options.
pub(crate) fn syn_room(ours: usize, mss: u16) -> usize {
    ours.saturating_sub(TCP_HEADER_LEN).min(mss.into()).saturating_sub(MAX_OPTIONS)
}

/// Answer to a SYN with Fast Open.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Answer {
    /// Payload of a full segment to the server, in bytes, from its MSS option.
    pub(crate) mss: u16,
    /// Cookie in the answer, if one was requested or sent.
    pub(crate) cookie: Option<FastOpenOption>,
    /// Fast Open option of our SYN.
    pub(crate) asked: Option<FastOpenOption>,
    /// The SYN was repeated without the option and without data.
    pub(crate) repeated: bool,
    /// True if the server supports Multipath TCP; `None` if it was not offered.
    pub(crate) multipath: Option<bool>,
    /// True if the SYN's data was acknowledged; `None` if it had none.
    pub(crate) syn_data_acked: Option<bool>,
}

/// Cookies of servers, and paths on which Fast Open does not pass.
#[derive(Debug, Default)]
pub(crate) struct FastOpenMemory {
    /// The most recently used entry is at the end.
    entries: VecDeque<Entry>,
}

impl FastOpenMemory {
    /// Selects the use of Fast Open in a SYN between these addresses, with these settings.
    pub(crate) fn plan(&self, now: Instant, path: PathAddresses, settings: &FastOpen) -> Plan {
        let entry = self.entries.iter().find(|e| e.path == path);
        if entry.is_some_and(|entry| entry.avoided_until > now) {
            return Plan::Ordinary;
        }
        let mss = entry.map_or(u16::MAX, |entry| entry.mss);
        let multipath = entry.and_then(|entry| entry.multipath);
        if multipath == Some(true) && !settings.with_multipath {
            return Plan::Ordinary;
        }
        if settings.without_cookie {
            return Plan::Send(None, mss);
        }
        let fits = settings.with_multipath || multipath == Some(false);
        match entry.and_then(|entry| entry.cookie).filter(|_| fits) {
            Some(cookie) => Plan::Send(Some(cookie), mss),
            None => {
                let form = entry.map(|entry| entry.form).unwrap_or_default();
                let experimental = form == RequestForm::Experimental;
                Plan::Ask(FastOpenOption::REQUEST.with_form(experimental))
            }
        }
    }

    /// Handles the answer to a SYN with Fast Open between these addresses.
    pub(crate) fn on_answer(&mut self, now: Instant, path: PathAddresses, answer: &Answer) {
        let known = self.entries.iter().position(|e| e.path == path);
        let known = known.and_then(|index| self.entries.remove(index));
        let mut entry = known.unwrap_or(Entry {
            path,
            cookie: None,
            mss: answer.mss,
            multipath: None,
            form: RequestForm::First,
            lost: 0,
            avoided_until: now,
        });
        entry.mss = answer.mss;
        if entry.multipath != Some(true) {
            entry.multipath = answer.multipath.or(entry.multipath);
        }
        // An unrequested cookie is ignored.
        let cookie = answer.cookie.filter(|cookie| answer.asked.is_some() && !cookie.is_request());
        entry.cookie = cookie.or(entry.cookie);
        let passed = cookie.is_some() || answer.syn_data_acked == Some(true);
        entry.lost = if answer.repeated && !passed { entry.lost.saturating_add(1) } else { 0 };
        if entry.lost >= MIN_CONSECUTIVE_LOSSES {
            (entry.lost, entry.avoided_until) = (0, now + AVOID_TIME);
        }
        if answer.asked.is_some()
            && !answer.repeated
            && answer.syn_data_acked.is_none()
            && cookie.is_none()
        {
            entry.form = if entry.form == RequestForm::First {
                RequestForm::Experimental
            } else {
                RequestForm::Settled
            };
        }
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Drops the entries of a local address that appeared, because it may now belong to another network.
    pub(crate) fn forget_address(&mut self, local: IpAddr) {
        self.entries.retain(|entry| entry.path.local != local);
    }

    /// Drops all entries.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;
    const WITH_COOKIE: FastOpen =
        FastOpen { without_cookie: false, pending: 64, ports: Vec::new(), with_multipath: true };

    fn without_cookie() -> FastOpen {
        FastOpen { without_cookie: true, ..WITH_COOKIE }
    }

    fn pair(last: u8) -> PathAddresses {
        let (local, remote) = ([10, 0, 0, 1].into(), [192, 0, 2, last].into());
        PathAddresses { local, remote }
    }

    fn cookie(byte: u8) -> FastOpenOption {
        FastOpenOption::cookie(&[byte; 8]).expect("a cookie")
    }

    fn asked() -> Answer {
        let asked = Some(FastOpenOption::REQUEST);
        Answer {
            mss: 1_000,
            cookie: None,
            asked,
            repeated: false,
            multipath: None,
            syn_data_acked: None,
        }
    }

    #[test]
    fn a_cookie_is_asked_for_once_and_used_from_then_on() {
        let mut memory = FastOpenMemory::default();
        assert_eq!(memory.plan(NOW, pair(1), &WITH_COOKIE), Plan::Ask(FastOpenOption::REQUEST));
        memory.on_answer(NOW, pair(1), &Answer { cookie: Some(cookie(7)), ..asked() });
        assert_eq!(memory.plan(NOW, pair(1), &WITH_COOKIE), Plan::Send(Some(cookie(7)), 1_000));
        assert_eq!(memory.plan(NOW, pair(2), &WITH_COOKIE), Plan::Ask(FastOpenOption::REQUEST));
        // Accepted data without a new cookie keeps the old one.
        let syn_data_acked =
            Answer { asked: Some(cookie(7)), syn_data_acked: Some(true), mss: 900, ..asked() };
        memory.on_answer(NOW, pair(1), &syn_data_acked);
        assert_eq!(memory.plan(NOW, pair(1), &WITH_COOKIE), Plan::Send(Some(cookie(7)), 900));
        memory.forget_address(pair(1).local);
        assert_eq!(memory.plan(NOW, pair(1), &WITH_COOKIE), Plan::Ask(FastOpenOption::REQUEST));
    }

    #[test]
    fn an_unrequested_cookie_is_ignored() {
        let mut memory = FastOpenMemory::default();
        let answer =
            Answer { cookie: Some(cookie(7)), asked: None, syn_data_acked: Some(true), ..asked() };
        memory.on_answer(NOW, pair(1), &answer);
        assert_eq!(memory.plan(NOW, pair(1), &WITH_COOKIE), Plan::Ask(FastOpenOption::REQUEST));
        assert_eq!(
            memory.plan(NOW, pair(1), &without_cookie()),
            Plan::Send(None, 1_000),
            "the data length counts"
        );
    }

    #[test]
    fn two_dropped_syns_in_a_row_disable_fast_open_for_an_hour() {
        let mut memory = FastOpenMemory::default();
        let known = Answer { cookie: Some(cookie(7)), ..asked() };
        let lost = Answer {
            asked: Some(cookie(7)),
            repeated: true,
            syn_data_acked: Some(false),
            ..asked()
        };
        memory.on_answer(NOW, pair(1), &known);
        memory.on_answer(NOW, pair(1), &lost);
        memory.on_answer(NOW, pair(1), &known);
        memory.on_answer(NOW, pair(1), &lost);
        assert_ne!(
            memory.plan(NOW, pair(1), &WITH_COOKIE),
            Plan::Ordinary,
            "not consecutive failures"
        );
        memory.on_answer(NOW, pair(1), &lost);
        assert_eq!(memory.plan(NOW, pair(1), &WITH_COOKIE), Plan::Ordinary);
        assert_eq!(memory.plan(NOW, pair(1), &without_cookie()), Plan::Ordinary);
        assert_ne!(memory.plan(NOW, pair(2), &WITH_COOKIE), Plan::Ordinary, "another address pair");
        assert_eq!(
            memory.plan(NOW + AVOID_TIME, pair(1), &WITH_COOKIE),
            Plan::Send(Some(cookie(7)), 1_000)
        );
    }

    /// With this setting a client sends data only to servers that were offered Multipath TCP and did not accept it.
    /// It does not send data again to a server that accepted it, at any port.
    #[test]
    fn fast_open_can_be_limited_to_servers_without_mptcp() {
        let spares = FastOpen { with_multipath: false, ..WITH_COOKIE };
        let mut memory = FastOpenMemory::default();
        let (ask, send) = (Plan::Ask(FastOpenOption::REQUEST), Plan::Send(Some(cookie(7)), 1_000));
        for (multipath, plan) in [
            (None, ask),
            (Some(false), send),
            (None, send),
            (Some(true), Plan::Ordinary),
            (Some(false), Plan::Ordinary),
        ] {
            let answer = Answer { cookie: Some(cookie(7)), multipath, ..asked() };
            memory.on_answer(NOW, pair(1), &answer);
            assert_eq!(memory.plan(NOW, pair(1), &spares), plan, "{multipath:?}");
            assert_eq!(memory.plan(NOW, pair(1), &WITH_COOKIE), send, "{multipath:?}");
        }
        memory.forget_address(pair(1).local);
        assert_eq!(memory.plan(NOW, pair(1), &spares), ask);
    }

    #[test]
    fn the_experimental_form_is_tried_once() {
        let mut memory = FastOpenMemory::default();
        let experimental = FastOpenOption::REQUEST.with_form(true);
        memory.on_answer(NOW, pair(1), &asked());
        assert_eq!(memory.plan(NOW, pair(1), &WITH_COOKIE), Plan::Ask(experimental));
        memory.on_answer(NOW, pair(1), &Answer { asked: Some(experimental), ..asked() });
        for _ in 0..2 {
            assert_eq!(memory.plan(NOW, pair(1), &WITH_COOKIE), Plan::Ask(FastOpenOption::REQUEST));
            memory.on_answer(NOW, pair(1), &asked());
        }
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_latest_entries() {
        let mut memory = FastOpenMemory::default();
        let at = |n: u32| {
            let remote = IpAddr::from((0x0a00_0000 + n).to_be_bytes());
            PathAddresses { remote, ..pair(1) }
        };
        for number in 0..1_000 {
            memory.on_answer(NOW, at(number), &Answer { cookie: Some(cookie(7)), ..asked() });
        }
        assert_eq!(memory.entries.len(), MAX_ENTRIES);
        assert_eq!(memory.plan(NOW, at(999), &WITH_COOKIE), Plan::Send(Some(cookie(7)), 1_000));
        assert_eq!(memory.plan(NOW, at(0), &WITH_COOKIE), Plan::Ask(FastOpenOption::REQUEST));
    }
}
