//! Segments of native TCP between the shards that share its ports (docs/adr/0050-native-shards.md).
//!
//! *Problem.* A segment has no id that would tell which shard it is for. The kernel spreads packets by where they come
//! from: a connection is the shard's to which its first SYN comes, at home there. But a join is for the shard whose
//! connection has the token, wherever it comes from, and all that follows on its path as well; and the queues of a TUN
//! interface are the kernel's to choose.
//!
//! Who receives a segment that its core does not claim asks the others, as processes ask each other
//! (`native_succession.rs`): first the one that the token names, or that has had the path before, or else all, beginning at
//! home. Whoever claims it takes it, and what nobody claims is taken at home: a new connection, or a stranger to be
//! answered. Asking is a look into the other's tables, in the thread that received: nothing is copied, nor waits, and no two
//! shards are locked at a time.

use std::sync::Arc;

use marline_core::{Asks, PacketMeta, Shard as Part};
use marline_time::Instant;

use super::connections::wake;
use super::shard::Shard;
use super::state::State;
use crate::native;
use crate::sys::error_queue::NetworkError;

/// What of a batch may be other shards'.
#[derive(Default)]
pub(super) struct ForOthers<'a> {
    pub(super) strays: Vec<Stray<'a>>,
    /// What ICMP said.
    pub(super) errors: Vec<NetworkError>,
}

/// A segment that the shard which received it does not claim.
pub(super) struct Stray<'a> {
    asks: Asks,
    meta: PacketMeta,
    segment: &'a [u8],
    /// The shard that is asked now.
    asked: u8,
    /// Nobody else is: it has the segment, claimed or not.
    is_last: bool,
}

impl State {
    /// The first shard to be asked for a segment that this one does not claim; `None`: it is this one's.
    pub(super) fn first_asked<'a>(
        &mut self,
        now: Instant,
        shard: Part,
        meta: PacketMeta,
        segment: &'a [u8],
    ) -> Option<Stray<'a>> {
        if shard.count <= 1 {
            return None;
        }
        self.owners.age(now);
        let (asks, path) = (Asks::of(segment), meta.path);
        let home = native::home(path.remote, shard.count);
        let (asked, is_last) = match asks {
            Asks::ToJoin(token) => {
                let owner = Part::of_token(token, shard.count);
                let others = Some(owner).filter(|owner| *owner != shard.index);
                self.owners.set(path, others);
                (owner, true)
            }
            Asks::ToOpen => self.owners.known(&path).map_or((home, true), |owner| (owner, false)),
            Asks::Nothing => match self.owners.known(&path) {
                Some(owner) => (owner, false),
                None => (self.owners.owner(path, &others(shard, home))?, false),
            },
        };
        if asked == shard.index {
            return None;
        }
        if asks != Asks::Nothing {
            self.endpoint.make_way(&path);
        }
        Some(Stray { asks, meta, segment, asked, is_last })
    }

    /// Asks the next shard for a segment that was not the asked one's.
    fn next_asked<'a>(&mut self, shard: Part, stray: Stray<'a>) -> Stray<'a> {
        let path = stray.meta.path;
        let home = native::home(path.remote, shard.count);
        let next = match stray.asks {
            Asks::Nothing => self.owners.owner_after(path, stray.asked, &others(shard, home)),
            Asks::ToOpen | Asks::ToJoin(_) => {
                self.owners.set(path, None);
                None
            }
        };
        Stray { asked: next.unwrap_or(home), is_last: next.is_none(), ..stray }
    }
}

/// The shards but this one, in the order in which they are asked.
fn others(shard: Part, home: u8) -> Vec<u8> {
    let from_home = (0..shard.count).map(|more| home.wrapping_add(more) & (shard.count - 1));
    from_home.filter(|other| *other != shard.index).collect()
}

impl Shard {
    /// Gives others what is theirs of a batch. No shard may be locked.
    pub(super) fn pass_on(&self, others: ForOthers<'_>) {
        let ForOthers { mut strays, errors } = others;
        while let Some(asked) = strays.first().map(|stray| stray.asked) {
            let (theirs, rest): (Vec<_>, Vec<_>) =
                strays.into_iter().partition(|stray| stray.asked == asked);
            strays = rest;
            let Some(sibling) = self.sibling(asked) else { continue };
            let left = sibling.take_strays(theirs);
            if !left.is_empty() {
                let mut state = self.lock();
                let shard = state.part();
                strays.extend(left.into_iter().map(|stray| state.next_asked(shard, stray)));
            }
        }
        if !errors.is_empty() {
            self.tell_siblings(&errors);
        }
    }

    fn sibling(&self, index: u8) -> Option<Arc<Shard>> {
        self.siblings.get()?.get(usize::from(index))?.upgrade()
    }

    /// Takes what it claims and what is asked of nobody else, and gives back the rest.
    fn take_strays<'a>(&self, strays: Vec<Stray<'a>>) -> Vec<Stray<'a>> {
        let mut left = Vec::new();
        let mut state = self.lock();
        let now = self.clock.now();
        let asked = strays.len();
        for stray in strays {
            let Stray { meta, segment, .. } = &stray;
            if state.endpoint.claims(now, meta, segment) {
                state.take_segment(now, meta, segment);
            } else if stray.is_last {
                state.take_unclaimed(now, meta, segment);
            } else {
                if stray.asks != Asks::Nothing {
                    state.endpoint.make_way(&meta.path);
                }
                left.push(stray);
            }
        }
        if left.len() < asked {
            self.after_foreign(&mut state, now);
        }
        left
    }

    /// What came to one queue of an interface may be of any shard's concern.
    fn tell_siblings(&self, errors: &[NetworkError]) {
        for sibling in self.siblings.get().into_iter().flatten().filter_map(std::sync::Weak::upgrade)
        {
            if core::ptr::eq(&raw const *sibling, self) {
                continue;
            }
            let mut state = sibling.lock();
            let now = sibling.clock.now();
            errors.iter().for_each(|error| state.on_native_error(now, error));
            sibling.serve(&mut state, now);
        }
    }

    /// Does what is due after another thread than the shard's gave it segments.
    pub(super) fn after_foreign(&self, state: &mut State, now: Instant) {
        if self.tell(state, now) {
            wake(state.driver.take());
        } else {
            self.serve(state, now);
        }
    }
}
