//! Interned names: the numbers by which policies count prefixes.
//!
//! The number of names is bounded, because clients choose the keys of objects. Names beyond the
//! bound share one number.

use std::collections::BTreeMap;

/// Longest name that is kept: that of an S3 key.
pub const NAME_BYTES_MAX: usize = 1024;

/// The number of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub u32);

impl NameId {
    /// All names beyond the bound.
    pub const OTHERS: Self = Self(0);
}

/// Names and their numbers.
#[derive(Debug)]
pub struct NameTable {
    ids: BTreeMap<Box<[u8]>, NameId>,
    names_max: usize,
    /// Lookups of names beyond the bound.
    refused: u64,
}

impl NameTable {
    /// A table of at most this number of names.
    pub fn new(names_max: usize) -> Self {
        Self { ids: BTreeMap::new(), names_max, refused: 0 }
    }

    /// The number of a name, which never changes.
    pub fn intern(&mut self, name: &[u8]) -> NameId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        if self.ids.len() >= self.names_max || name.len() > NAME_BYTES_MAX {
            self.refused += 1;
            return NameId::OTHERS;
        }
        let id = NameId(u32::try_from(self.ids.len() + 1).unwrap_or(0));
        self.ids.insert(name.into(), id);
        id
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Lookups that were answered with [`NameId::OTHERS`].
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

/// The directory of a key: everything up to its last `/`.
pub fn directory(key: &[u8]) -> &[u8] {
    let end = key.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    &key[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_bound_share_a_number() {
        let mut names = NameTable::new(2);
        let (a, b) = (names.intern(b"a/"), names.intern(b"b/"));
        assert_ne!(a, b);
        assert_eq!(names.intern(b"a/"), a);
        assert_eq!(names.intern(b"c/"), NameId::OTHERS);
        assert_eq!(names.intern(b"b/"), b);
        assert_eq!((names.len(), names.refused()), (2, 1));
        assert_eq!(NameTable::new(9).intern(&[b'x'; 2000]), NameId::OTHERS);
    }

    #[test]
    fn a_directory_ends_with_its_slash() {
        assert_eq!(directory(b"a/b/c.parquet"), b"a/b/");
        assert_eq!(directory(b"c.parquet"), b"");
        assert_eq!(directory(b"a//"), b"a//");
    }
}
