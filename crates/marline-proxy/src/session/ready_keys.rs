//! Ready AEAD keys of the records: a bounded number per thread, shared by all streams.
//!
//! A key that is ready to seal (its rounds, and GHASH's table) takes half a kilobyte, and a stream has two. Most
//! streams are idle most of the time and then need only a secret, from which the key is derived in 0.4 us (AMD
//! EPYC, AES). Therefore a direction keeps only its secret, and each thread keeps the keys that it used last.
//!
//! A key's slot follows from its number, and numbers are assigned in turn, so streams that started one after the other
//! do not displace each other. A thread that serves many more streams than it has slots derives a key for each record
//! that follows one of another stream. A key stays until its slot is needed, which may be after its stream has ended.
//! ring does not overwrite dropped keys either.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::aead::LessSafeKey;

/// Number of keys per thread. They take about 150 kB once the thread seals or opens a record.
const CACHED_KEYS: usize = 256;

thread_local! {
    static KEYS: RefCell<Vec<Option<(KeyNumber, LessSafeKey)>>> = const { RefCell::new(Vec::new()) };
}

/// Number of a key, unique in this process.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyNumber(u64);

impl KeyNumber {
    /// Returns the next number.
    pub(super) fn next() -> KeyNumber {
        static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
        KeyNumber(NEXT_NUMBER.fetch_add(1, Ordering::Relaxed))
    }

    const fn index(self) -> usize {
        (self.0 % CACHED_KEYS as u64) as usize
    }
}

/// Calls `act` with the key of this number, which `make` derives if it is not ready. Neither may call this
/// function.
pub(super) fn with_key<R>(
    number: KeyNumber,
    make: impl FnOnce() -> LessSafeKey,
    act: impl FnOnce(&LessSafeKey) -> R,
) -> R {
    KEYS.with_borrow_mut(|keys| {
        if keys.is_empty() {
            keys.resize_with(CACHED_KEYS, || None);
        }
        let place = &mut keys[number.index()];
        match place {
            Some((ready, key)) if *ready == number => act(key),
            _ => act(&place.insert((number, make())).1),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use ring::aead::{AES_128_GCM, UnboundKey};

    use super::*;

    /// Returns the number of keys derived when the keys with these numbers are used in turn by a new thread.
    fn count_derived(numbers: &[u64]) -> u32 {
        let mut count = 0;
        let mut make = || {
            count += 1;
            LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[0; 16]).unwrap())
        };
        thread::scope(|scope| {
            let used = scope.spawn(|| {
                for number in numbers {
                    with_key(KeyNumber(*number), &mut make, |_| ());
                }
            });
            used.join().unwrap();
        });
        count
    }

    #[test]
    fn a_key_is_derived_once_until_its_slot_is_reused() {
        let beside = 3 + CACHED_KEYS as u64;
        assert_eq!(count_derived(&[3, 4, 3, 4]), 2);
        assert_eq!(count_derived(&[3, beside - 1, 3]), 2);
        assert_eq!(count_derived(&[3, beside, beside, 3]), 3);
    }

    #[test]
    fn each_thread_derives_its_own_keys() {
        assert_eq!((count_derived(&[5]), count_derived(&[5])), (1, 1));
    }
}
