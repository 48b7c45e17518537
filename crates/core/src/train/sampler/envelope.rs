//! The envelope of bytes that outlive a process: magic, version, length, body and checksum.
//!
//! States and recordings come back from checkpoints, perhaps years later, perhaps truncated. Each
//! kind of damage has its own error, and nothing is decoded before the checksum matches. Under
//! `cfg(fuzzing)` the checksum is not compared, so that the fuzzer reaches the decoders behind it.

/// Magic, version and length.
const HEAD: usize = 16 + 8;
const CHECKSUM: usize = 8;

/// Name and magic of a format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) magic: [u8; 15],
    /// The newest version. All from 1 on are read.
    pub(super) version: u8,
}

/// Why bytes cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Another kind of file.
    #[error("this is not a {what} of a sampler")]
    Foreign {
        /// What was expected.
        what: &'static str,
    },
    /// Written by another version of forebay.
    #[error("this {what} is of version {found}; this forebay reads versions up to {known}")]
    Version {
        /// What was expected.
        what: &'static str,
        /// Its version.
        found: u8,
        /// The newest version that is supported.
        known: u8,
    },
    /// Truncated.
    #[error("this {what} is truncated: {found} of {expected} bytes; use another copy")]
    Truncated {
        /// What was expected.
        what: &'static str,
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// The checksum does not match, or the content is impossible.
    #[error("this {what} is damaged; use another copy")]
    Damaged {
        /// What was expected.
        what: &'static str,
    },
}

impl Format {
    pub(super) fn seal(self, version: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + body.len() + CHECKSUM);
        bytes.extend_from_slice(&self.magic);
        bytes.push(version);
        bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(&checksum(&bytes));
        bytes
    }

    pub(super) fn open(self, bytes: &[u8]) -> Result<Body<'_>, FormatError> {
        let what = self.name;
        let found = bytes.len() as u64;
        let magic = &bytes[..bytes.len().min(self.magic.len())];
        if !self.magic.starts_with(magic) {
            return Err(FormatError::Foreign { what });
        }
        let least = (HEAD + CHECKSUM) as u64;
        let version = bytes.get(self.magic.len()).copied().unwrap_or(self.version);
        if !(1..=self.version).contains(&version) {
            return Err(FormatError::Version { what, found: version, known: self.version });
        }
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
            return Err(FormatError::Truncated { what, expected: least, found });
        };
        let length = u64::from_le_bytes(*head.last_chunk().expect("the end of the head"));
        let expected = length.saturating_add(least);
        if found < expected {
            return Err(FormatError::Truncated { what, expected, found });
        }
        let Some((body, sum)) = rest.split_last_chunk::<CHECKSUM>() else {
            return Err(FormatError::Truncated { what, expected, found });
        };
        let whole = checksum(&bytes[..HEAD + body.len()]) == *sum || cfg!(fuzzing);
        if found > expected || !whole {
            return Err(FormatError::Damaged { what });
        }
        Ok(Body { what, version, bytes: body })
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    *blake3::hash(bytes).as_bytes().first_chunk().expect("a hash is longer")
}

/// The rest of the body.
#[derive(Debug)]
pub(super) struct Body<'a> {
    what: &'static str,
    version: u8,
    bytes: &'a [u8],
}

impl<'a> Body<'a> {
    pub(super) fn version(&self) -> u8 {
        self.version
    }

    pub(super) fn damaged(&self) -> FormatError {
        FormatError::Damaged { what: self.what }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (array, rest) = self.bytes.split_first_chunk().ok_or_else(|| self.damaged())?;
        self.bytes = rest;
        Ok(*array)
    }

    pub(super) fn slice(&mut self, length: usize) -> Result<&'a [u8], FormatError> {
        let (slice, rest) = self.bytes.split_at_checked(length).ok_or_else(|| self.damaged())?;
        self.bytes = rest;
        Ok(slice)
    }

    pub(super) fn byte(&mut self) -> Result<u8, FormatError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Seven bits per byte, least first, in the shortest form.
    pub(super) fn varint(&mut self) -> Result<u32, FormatError> {
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                let shortest = byte > 0 || shift == 0;
                let narrow = u32::try_from(value).ok().filter(|_| shortest);
                return narrow.ok_or_else(|| self.damaged());
            }
        }
        Err(self.damaged())
    }

    /// Number of entries that follow. Each takes at least a byte, so that a count from outside
    /// cannot cause a large allocation.
    pub(super) fn count(&mut self) -> Result<usize, FormatError> {
        let count = self.varint()? as usize;
        if count > self.bytes.len() {
            return Err(self.damaged());
        }
        Ok(count)
    }

    pub(super) fn end(&self) -> Result<(), FormatError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.damaged()) }
    }
}

/// Writes what [`Body::varint`] reads.
pub(super) fn push_varint(bytes: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMAT: Format = Format { name: "test", magic: *b"forebay testing", version: 3 };

    #[test]
    fn every_way_to_be_wrong_has_a_name() {
        let whole = FORMAT.seal(3, b"hello");
        let error = |bytes: &[u8]| FORMAT.open(bytes).unwrap_err().to_string();
        assert!(FORMAT.open(&whole).is_ok());
        for length in 0..whole.len() {
            let error = error(&whole[..length]);
            assert!(error.contains("is truncated"), "{length}: {error}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut wrong = whole.clone();
                wrong[at] ^= 1 << bit;
                let error = error(&wrong);
                let named = match at {
                    0..15 => "not a test of a sampler",
                    // Another version that is read is not the one of the checksum.
                    15 if matches!(wrong[at], 1..=3) => "damaged",
                    15 => "reads versions up to 3",
                    // A length that is too large looks like a truncated file.
                    16..24 if error.contains("truncated") => "truncated",
                    _ => "damaged",
                };
                assert!(error.contains(named), "{at}: {error}");
            }
        }
        assert!(error(&[whole, vec![0]].concat()).contains("damaged"));
        assert!(error(b"PK\x03\x04").contains("not a test of a sampler"));
    }

    proptest! {
        #[test]
        fn numbers_come_back(value in prop_oneof![any::<u32>(), 0_u32..300]) {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            let sealed = FORMAT.seal(1, &bytes);
            let mut body = FORMAT.open(&sealed).unwrap();
            prop_assert_eq!(body.varint(), Ok(value));
            prop_assert_eq!(body.end(), Ok(()));
        }
    }

    #[test]
    fn odd_numbers_are_refused() {
        for wrong in [&[0x80, 0][..], &[0x80], &[0xff, 0xff, 0xff, 0xff, 0x1f], &[0x80; 6]] {
            let sealed = FORMAT.seal(1, wrong);
            assert!(FORMAT.open(&sealed).unwrap().varint().is_err(), "{wrong:?}");
        }
        let sealed = FORMAT.seal(1, &[9, 0, 0]);
        assert!(FORMAT.open(&sealed).unwrap().count().is_err(), "fewer than nine bytes follow");
    }
}
