//! Who may know that a blob is cached: the holders of its namespace's key.
//!
//! Addresses are keyed hashes. In the namespace `public` the key is known to everyone, so equal bytes
//! meet across users. In any other, only those who hold the key can compute an address, and so nobody
//! outside can confirm or guess what is cached.

use std::fmt;

use super::{Address, HexError, hex_name};

/// Domains of BLAKE3's key derivation: fixed for ever, for every address depends on them.
const PUBLIC_KEY_CONTEXT: &str = "forebay 2026 public namespace key v1";
const NAMESPACE_ID_CONTEXT: &str = "forebay 2026 namespace id v1";

/// The first line of a key file; the key follows on the second.
const KEY_FILE_HEADER: &str = "forebay namespace key v1";

hex_name! {
    /// Tells namespaces apart without giving their keys away; safe to store and to print.
    NamespaceId, 16, "a namespace id"
}

/// A set of people who share a cache, and the key that only they hold.
#[derive(Clone, PartialEq, Eq)]
pub struct Namespace {
    key: [u8; 32],
}

/// Why a text is not a namespace key. It never quotes the text, which may well be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceKeyError {
    /// Not one of our files.
    #[error(
        "this is not a forebay namespace key (its first line should read `{KEY_FILE_HEADER}`); make one with `forebay namespace new FILE`"
    )]
    Header,
    /// The right kind of file, the wrong kind of key.
    #[error(
        "the key is malformed: {0}; restore the file, or make a new one with `forebay namespace new FILE`"
    )]
    Key(#[from] HexError),
    /// The key that everybody knows.
    #[error(
        "the key is the public one or all zeros, which protects nothing; make one with `forebay namespace new FILE`"
    )]
    Known,
}

impl Namespace {
    /// The namespace that everyone shares: its key is known.
    pub fn public() -> Self {
        Self { key: blake3::derive_key(PUBLIC_KEY_CONTEXT, b"") }
    }

    /// A namespace with a secret key. The caller supplies the randomness.
    pub fn secret(key: [u8; 32]) -> Result<Self, NamespaceKeyError> {
        let namespace = Self { key };
        if namespace.is_public() || key == [0; 32] {
            return Err(NamespaceKeyError::Known);
        }
        Ok(namespace)
    }

    /// Reads the text of a key file (see [`Namespace::to_key_file`]).
    pub fn from_key_file(text: &str) -> Result<Self, NamespaceKeyError> {
        let mut lines = text.lines();
        if lines.next() != Some(KEY_FILE_HEADER) {
            return Err(NamespaceKeyError::Header);
        }
        let key = super::from_hex("a namespace key", lines.next().unwrap_or_default().trim())?;
        Self::secret(key)
    }

    /// The text of a key file. The only way in which a key leaves this type.
    pub fn to_key_file(&self) -> String {
        let digits = blake3::Hash::from_bytes(self.key).to_hex();
        format!("{KEY_FILE_HEADER}\n{digits}\n")
    }

    /// Whether everyone knows the key.
    pub fn is_public(&self) -> bool {
        *self == Self::public()
    }

    /// The name under which digests and nodes refer to it.
    pub fn id(&self) -> NamespaceId {
        let derived = blake3::derive_key(NAMESPACE_ID_CONTEXT, &self.key);
        NamespaceId::from_bytes(derived[..16].try_into().expect("16 of 32 bytes"))
    }

    /// The address of `content`.
    pub fn address(&self, content: &[u8]) -> Address {
        Address::from_bytes(*blake3::keyed_hash(&self.key, content).as_bytes())
    }

    /// For content that arrives in pieces.
    pub fn hasher(&self) -> AddressHasher {
        AddressHasher(blake3::Hasher::new_keyed(&self.key))
    }
}

/// Shows whether it is public and its id, never the key.
impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_public() {
            f.write_str("Namespace(public)")
        } else {
            write!(f, "Namespace({}, key redacted)", self.id())
        }
    }
}

/// Computes an address from pieces.
#[derive(Clone)]
pub struct AddressHasher(blake3::Hasher);

impl AddressHasher {
    /// Adds the next piece of the content.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The address of all pieces so far, in order.
    pub fn finish(&self) -> Address {
        Address::from_bytes(*self.0.finalize().as_bytes())
    }
}

/// Its state depends on the key, so it shows none of it.
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

    /// Every digest and every cache depends on these values: a change here would orphan them all.
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
