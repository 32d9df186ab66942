//! Hash of an endpoint's state: of its debug text, excluding parts that do not influence behavior.

use core::fmt::{self, Debug, Write};

/// True for omitted fields: configuration, statistics, and reused memory.
fn is_excluded_field(field: &str) -> bool {
    matches!(
        field,
        "config"
            | "accept"
            | "settings"
            | "counters"
            | "delays"
            | "workspace"
            | "scratch"
            | "desk"
            | "stats"
            | "account"
    )
}

/// A hash of the state of an endpoint.
pub(super) fn hash(endpoint: &impl Debug) -> u64 {
    let mut text = Text { hash: 0, last_was_name: false, left_out: None };
    // Neither derived formats nor this writer can fail.
    let _ = write!(text, "{endpoint:?}");
    text.hash
}

/// Hashes debug text piece by piece, as derived formats write it: a name, `: `, the pieces of the value, `, `.
struct Text {
    hash: u64,
    /// True if the last piece is the name of an omitted field.
    last_was_name: bool,
    /// Number of open brackets in an omitted value.
    left_out: Option<usize>,
}

impl Text {
    fn take(&mut self, piece: &str) {
        let (words, rest) = piece.as_bytes().as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let rest = rest.iter().fold(piece.len() as u64, |word, byte| word << 8 | u64::from(*byte));
        self.mix(rest);
    }

    const fn mix(&mut self, word: u64) {
        let mixed = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 29);
    }
}

impl Write for Text {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if let Some(open) = &mut self.left_out {
            for letter in piece.bytes() {
                match letter {
                    b'{' | b'[' | b'(' => *open += 1,
                    b'}' | b']' | b')' if *open > 0 => *open -= 1,
                    // The end of the value, or of the structure that contains it.
                    b'}' | b']' | b')' | b',' if *open == 0 => {
                        self.left_out = None;
                        break;
                    }
                    _ => {}
                }
            }
            return Ok(());
        }
        if self.last_was_name && piece == ": " {
            self.left_out = Some(0);
        }
        self.last_was_name = is_excluded_field(piece);
        self.take(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Inner {
        stats: Vec<(u32, [u8; 2])>,
        kept: Vec<u32>,
    }

    #[derive(Clone, Debug, Default)]
    struct Outer {
        config: Option<Inner>,
        first: u32,
        inner: Inner,
        last: u32,
    }

    #[test]
    fn only_the_named_fields_are_left_out_of_the_hash() {
        let base = Outer::default();
        let change = |change: fn(&mut Outer)| {
            let mut changed = base.clone();
            change(&mut changed);
            hash(&changed) == hash(&base)
        };
        assert!(change(|o| o.config = Some(Inner::default())));
        assert!(change(|o| o.inner.stats = vec![(1, [2, 3]), (4, [5, 6])]));
        assert!(!change(|o| o.first = 1));
        assert!(!change(|o| o.inner.kept = vec![0]));
        assert!(!change(|o| o.last = 1));
    }
}
