//! Big-endian reading and writing that never panics. A reader returns `None` when its bytes run out. A writer that
//! exceeds its buffer records how much space it would have needed.

/// Takes fixed-size big-endian fields off the front of a slice.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// Appends fields to a slice; bytes beyond its end are counted but not written.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    pub(crate) const fn new(out: &'a mut [u8]) -> Self {
        Writer { out, len: 0 }
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(slot) = self.out.get_mut(self.len..self.len + N) {
            slot.copy_from_slice(&bytes);
        }
        self.len += N;
    }

    pub(crate) fn slice(&mut self, bytes: &[u8]) {
        if let Some(slot) = self.out.get_mut(self.len..self.len + bytes.len()) {
            slot.copy_from_slice(bytes);
        }
        self.len += bytes.len();
    }

    #[inline]
    pub(crate) fn u8(&mut self, value: u8) {
        self.array([value]);
    }

    #[inline]
    pub(crate) fn u16(&mut self, value: u16) {
        self.array(value.to_be_bytes());
    }

    #[inline]
    pub(crate) fn u32(&mut self, value: u32) {
        self.array(value.to_be_bytes());
    }

    #[inline]
    pub(crate) fn u64(&mut self, value: u64) {
        self.array(value.to_be_bytes());
    }

    /// Number of bytes written, or needed if the buffer is too short.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}
