//! Identifiers of subflows, addresses and connections.

use core::fmt;

/// A subflow within its connection: a slot number below [`SubflowSet::CAPACITY`]. A slot is reused only after
/// no mapping refers to its previous subflow.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubflowId(pub u8);

impl fmt::Display for SubflowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sf{}", self.0)
    }
}

/// An address ID (RFC 8684 section 3.2); 0 is the address of the initial subflow.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressId(pub u8);

/// A connection's token: the upper 32 bits of SHA-256 over a key. It is confidential and must not appear in
/// logs: there is no `Display`, and `Debug` hides it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u32);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A set of subflows of one connection.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SubflowSet(pub(crate) u32);

impl SubflowSet {
    /// Number of slots per connection.
    pub const CAPACITY: u8 = 32;
    /// The empty set.
    pub const EMPTY: SubflowSet = SubflowSet(0);

    /// Creates a set with one member.
    #[must_use]
    pub const fn single(id: SubflowId) -> Self {
        SubflowSet(1 << (id.0 & 31))
    }

    /// Returns true if `id` is in the set.
    #[must_use]
    pub const fn contains(self, id: SubflowId) -> bool {
        self.0 & Self::single(id).0 != 0
    }

    /// Adds `id`.
    pub const fn insert(&mut self, id: SubflowId) {
        self.0 |= Self::single(id).0;
    }

    /// Removes `id`.
    pub const fn remove(&mut self, id: SubflowId) {
        self.0 &= !Self::single(id).0;
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of members.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The members in ascending order.
    pub fn iter(self) -> impl Iterator<Item = SubflowId> + use<> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let lowest = SubflowId(left.trailing_zeros() as u8);
            (left != 0).then(|| {
                left &= left - 1;
                lowest
            })
        })
    }
}
