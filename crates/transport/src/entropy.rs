//! Entropy: where a process takes random bytes from.
//!
//! A node and an agent take them from the kernel. A simulated world gives each its own seeded
//! source, so that one seed repeats a run.

use std::{fmt, sync::Arc};

/// A source of random bytes.
#[derive(Clone)]
pub struct Entropy(Arc<dyn Fn() -> Option<[u8; 32]> + Send + Sync>);

impl Entropy {
    /// The kernel's.
    pub fn kernel() -> Self {
        Self(Arc::new(|| {
            let mut nonce = [0; 32];
            let filled = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
            (filled == Ok(nonce.len())).then_some(nonce)
        }))
    }

    /// A function's, which has to return other bytes at every call.
    pub fn from_source(source: impl Fn() -> [u8; 32] + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || Some(source())))
    }

    /// A random nonce, or `None` if the source cannot be read.
    pub fn nonce(&self) -> Option<[u8; 32]> {
        (self.0)()
    }

    /// A random number, or `None` if the source cannot be read.
    pub fn number(&self) -> Option<u64> {
        let nonce = self.nonce()?;
        Some(u64::from_le_bytes(*nonce.first_chunk().expect("longer")))
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nonces_of_the_kernel_differ() {
        let entropy = Entropy::kernel();
        assert_ne!(entropy.nonce().unwrap(), entropy.nonce().unwrap());
    }
}
