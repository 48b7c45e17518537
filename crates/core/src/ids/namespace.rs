//! Namespaces: the keys that addresses are computed with.
//!
//! Addresses are keyed hashes. The key of the namespace `public` is published, so all users share
//! its blobs. In any other namespace only the holders of the key can compute an address. A process
//! without the key can neither confirm nor guess what is cached.

use std::fmt;

use blake3::hazmat::Mode;
use zeroize::Zeroizing;

use super::{Address, HexError, hex_name};

/// Domains of BLAKE3's key derivation. They never change: every address depends on them.
const PUBLIC_KEY_CONTEXT: &str = "forebay 2026 public namespace key v1";
const NAMESPACE_ID_CONTEXT: &str = "forebay 2026 namespace id v1";

/// The first line of a key file; the key follows on the second.
const KEY_FILE_HEADER: &str = "forebay namespace key v1";

hex_name! {
    /// Identifies a namespace without revealing its key. Safe to store and to print.
    NamespaceId, 16, "a namespace id"
}

/// A key for computing addresses. Its holders share cached blobs. Its memory is zeroed on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Namespace {
    key: Zeroizing<[u8; 32]>,
}

/// A text that is not a namespace key. The message never quotes the text, which may be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceKeyError {
    /// Not a namespace key file.
    #[error(
        "this is not a forebay namespace key (its first line should read `{KEY_FILE_HEADER}`); \
         make one with `forebay namespace new FILE`"
    )]
    Header,
    /// A key file with a malformed key.
    #[error(
        "the key is malformed: {0}; restore the file, \
         or make a new one with `forebay namespace new FILE`"
    )]
    Key(#[from] HexError),
    /// The published key or all zeros.
    #[error(
        "the key is the public one or all zeros, which protects nothing; \
         make one with `forebay namespace new FILE`"
    )]
    Known,
}

impl Namespace {
    /// The namespace `public`, whose key is published.
    pub fn public() -> Self {
        Self { key: Zeroizing::new(blake3::derive_key(PUBLIC_KEY_CONTEXT, b"")) }
    }

    /// A namespace with a secret key. The caller supplies the randomness.
    pub fn secret(key: [u8; 32]) -> Result<Self, NamespaceKeyError> {
        let namespace = Self { key: Zeroizing::new(key) };
        if namespace.is_public() || *namespace.key == [0; 32] {
            return Err(NamespaceKeyError::Known);
        }
        Ok(namespace)
    }

    /// Parses the text of a key file (see [`Namespace::to_key_file`]).
    pub fn from_key_file(text: &str) -> Result<Self, NamespaceKeyError> {
        let mut lines = text.lines();
        if lines.next() != Some(KEY_FILE_HEADER) {
            return Err(NamespaceKeyError::Header);
        }
        let key = super::from_hex("a namespace key", lines.next().unwrap_or_default().trim())?;
        Self::secret(key)
    }

    /// The text of a key file. No other method reveals the key.
    pub fn to_key_file(&self) -> String {
        let digits = blake3::Hash::from_bytes(*self.key).to_hex();
        format!("{KEY_FILE_HEADER}\n{digits}\n")
    }

    /// Whether this is the namespace `public`.
    pub fn is_public(&self) -> bool {
        *self == Self::public()
    }

    /// The id by which digests and nodes refer to the namespace.
    pub fn id(&self) -> NamespaceId {
        let derived = blake3::derive_key(NAMESPACE_ID_CONTEXT, &*self.key);
        NamespaceId::from_bytes(derived[..16].try_into().expect("16 of 32 bytes"))
    }

    /// The address of `content`.
    pub fn address(&self, content: &[u8]) -> Address {
        Address::from_bytes(*blake3::keyed_hash(&self.key, content).as_bytes())
    }

    /// A fresh hasher with this key, for a part of a [hash tree](crate::dataset::hash_tree).
    pub(crate) fn keyed(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(&self.key)
    }

    /// The mode in which nodes of a hash tree are merged.
    pub(crate) fn mode(&self) -> Mode<'_> {
        Mode::KeyedHash(&self.key)
    }

    /// Hashes content that arrives in several buffers.
    pub fn hasher(&self) -> AddressHasher {
        AddressHasher(self.keyed())
    }
}

/// Shows `public` or the id, never the key.
impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_public() {
            f.write_str("Namespace(public)")
        } else {
            write!(f, "Namespace({}, key redacted)", self.id())
        }
    }
}

/// Computes the address of content that arrives in several buffers.
#[derive(Clone)]
pub struct AddressHasher(blake3::Hasher);

impl AddressHasher {
    /// Adds the next bytes of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The address of all bytes so far.
    pub fn finish(&self) -> Address {
        Address::from_bytes(*self.0.finalize().as_bytes())
    }
}

/// Shows none of the state, which depends on the key.
impl fmt::Debug for AddressHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressHasher(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Namespace {
        Namespace::secret([0xa5; 32]).unwrap()
    }

    #[test]
    fn addresses_differ_between_namespaces_and_agree_within_one() {
        assert_eq!(Namespace::public().address(b"x"), Namespace::public().address(b"x"));
        assert_ne!(Namespace::public().address(b"x"), secret().address(b"x"));
        let mut hasher = secret().hasher();
        hasher.update(b"pix");
        hasher.update(b"els");
        assert_eq!(hasher.finish(), secret().address(b"pixels"));
    }

    /// Every digest and every cache depends on these values. A change would orphan them all.
    #[test]
    fn public_addresses_never_change() {
        assert_eq!(
            Namespace::public().address(b"forebay").to_string(),
            "90fe84bceba0bc8eb7acc0728cf7066cb462f4078bac370d551e5ccfa5ab759e"
        );
        assert_eq!(Namespace::public().id().to_string(), "dacb0606eb9ae4654b7c2ff697321d25");
    }

    #[test]
    fn key_files_survive_a_round_trip_and_keys_are_never_shown() {
        let file = secret().to_key_file();
        assert_eq!(Namespace::from_key_file(&file), Ok(secret()));
        let shown = format!("{:?} {:?} {}", secret(), secret().hasher(), secret().id());
        assert!(!shown.contains("a5a5") && shown.contains("redacted"), "{shown}");
    }

    #[test]
    fn bad_keys_are_refused_without_quoting_them() {
        let digits = "a5".repeat(32);
        for text in ["", "a5a5", &digits, &format!("{KEY_FILE_HEADER}\n{}", &digits[2..])] {
            let error = Namespace::from_key_file(text).expect_err(text).to_string();
            assert!(!error.contains("a5a5"), "{error}");
        }
        let public = Namespace::public().to_key_file();
        assert_eq!(Namespace::from_key_file(&public), Err(NamespaceKeyError::Known));
        assert_eq!(Namespace::secret([0; 32]), Err(NamespaceKeyError::Known));
    }
}
