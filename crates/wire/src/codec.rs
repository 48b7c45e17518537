//! Codec of fields: little-endian integers, texts and lists, one after the other.

use forebay_core::{
    Address, BlobOrdinal, ByteSize, DatasetId, HalfChunk, NamespaceId,
    train::manager::HalfChunkBytes,
};

use crate::TEXT_SIZE_MAX;

/// Error in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The body ends before its last field.
    #[error("the body is too short for its kind")]
    Short,
    /// The body continues after its last field.
    #[error("the body is too long for its kind")]
    Long,
    /// A count or length exceeds a limit of the protocol.
    #[error("a count or length exceeds the protocol's limit")]
    OverLimit,
    /// A field has an invalid value.
    #[error("a field has an invalid value")]
    Value,
    /// This version has no frame of this kind in this direction.
    #[error("the kind {0} is unknown")]
    Kind(u8),
}

/// Reads fields from the front of a body.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.bytes(N)?.try_into().expect("N bytes were taken"))
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value),
        }
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn address(&mut self) -> Result<Address, Malformed> {
        self.array().map(Address::from_bytes)
    }

    pub fn dataset(&mut self) -> Result<DatasetId, Malformed> {
        self.array().map(DatasetId::from_bytes)
    }

    pub fn blob(&mut self) -> Result<BlobOrdinal, Malformed> {
        self.u64().map(BlobOrdinal::new)
    }

    pub fn half_chunk(&mut self) -> Result<HalfChunk, Malformed> {
        self.u32().map(HalfChunk)
    }

    pub fn half_chunk_bytes(&mut self) -> Result<HalfChunkBytes, Malformed> {
        Ok(HalfChunkBytes { half_chunk: self.half_chunk()?, bytes: ByteSize(self.u64()?) })
    }

    pub fn namespace(&mut self) -> Result<NamespaceId, Malformed> {
        self.array().map(NamespaceId::from_bytes)
    }

    pub fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.short_bytes(TEXT_SIZE_MAX)?).map_err(|_| Malformed::Value)
    }

    /// A `u16` length, at most `limit`, and that number of bytes.
    pub fn short_bytes(&mut self, limit: usize) -> Result<Vec<u8>, Malformed> {
        let length = usize::from(self.u16()?);
        if length > limit {
            return Err(Malformed::OverLimit);
        }
        self.bytes(length).map(<[u8]>::to_vec)
    }

    /// A `u32` count, at most `limit`, and that number of elements. `element_size` is the smallest
    /// size of one: a count that the rest of the body cannot hold is an error before allocation.
    pub fn list<T>(
        &mut self,
        limit: usize,
        element_size: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        if count > limit {
            return Err(Malformed::OverLimit);
        }
        if count * element_size > self.0.len() {
            return Err(Malformed::Short);
        }
        (0..count).map(|_| element(self)).collect()
    }

    /// Checks that no bytes are left.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Long) }
    }
}

/// Appends fields to a body.
pub(crate) struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// A text, cut at a character boundary to [`TEXT_SIZE_MAX`] bytes.
    pub fn text(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(TEXT_SIZE_MAX)];
        self.short_bytes(TEXT_SIZE_MAX, text.as_bytes());
    }

    pub fn short_bytes(&mut self, limit: usize, bytes: &[u8]) {
        assert!(bytes.len() <= limit, "{} bytes; at most {limit} are allowed", bytes.len());
        self.u16(u16::try_from(bytes.len()).expect("limits fit"));
        self.bytes(bytes);
    }

    pub fn list<T>(&mut self, limit: usize, list: &[T], mut element: impl FnMut(&mut Self, &T)) {
        assert!(list.len() <= limit, "{} elements; at most {limit} are allowed", list.len());
        self.u32(u32::try_from(list.len()).expect("limits fit"));
        for value in list {
            element(self, value);
        }
    }
}
