//! Lending: which borrower has leased which streams of a store.
//!
//! A borrower is a connection of another process. A lease counts as a reader of its stream, and
//! ends when the borrower returns it or is gone. Both numbers are bounded, so that no process can
//! exhaust the owner.

use std::collections::BTreeMap;

use super::StreamId;

/// Most borrowers at a time.
pub const BORROWERS_MAX: usize = 256;
/// Most leases of one borrower at a time.
pub const LEASES_MAX: usize = 1024;

/// Number of a borrower while its store is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BorrowerId(pub u64);

/// Number of a lease of one borrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u32);

/// Why nothing is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum LendingError {
    #[error("the store has {BORROWERS_MAX} borrowers already: end some of their processes")]
    TooManyBorrowers,
    #[error("this process has leased {LEASES_MAX} streams already: close some of its readers")]
    TooManyLeases,
    #[error("the lease has ended: open the stream again")]
    NoLease,
}

/// The leases of all borrowers.
#[derive(Debug, Default)]
pub struct Lending {
    borrowers: BTreeMap<BorrowerId, BTreeMap<LeaseId, StreamId>>,
    borrowers_begun: u64,
    leases_begun: u32,
}

impl Lending {
    /// A process has connected.
    pub fn on_connect(&mut self) -> Result<BorrowerId, LendingError> {
        if self.borrowers.len() >= BORROWERS_MAX {
            return Err(LendingError::TooManyBorrowers);
        }
        let id = BorrowerId(self.borrowers_begun);
        self.borrowers_begun += 1;
        self.borrowers.insert(id, BTreeMap::new());
        Ok(id)
    }

    /// Whether a borrower may lease one more stream.
    pub fn check_room(&self, borrower: BorrowerId) -> Result<(), LendingError> {
        let leases = self.borrowers.get(&borrower).ok_or(LendingError::NoLease)?;
        if leases.len() >= LEASES_MAX { Err(LendingError::TooManyLeases) } else { Ok(()) }
    }

    /// A stream has been opened for a borrower.
    pub fn on_lent(
        &mut self,
        borrower: BorrowerId,
        stream: StreamId,
    ) -> Result<LeaseId, LendingError> {
        self.check_room(borrower)?;
        let leases = self.borrowers.get_mut(&borrower).ok_or(LendingError::NoLease)?;
        loop {
            let lease = LeaseId(self.leases_begun);
            self.leases_begun = self.leases_begun.wrapping_add(1);
            if let std::collections::btree_map::Entry::Vacant(free) = leases.entry(lease) {
                free.insert(stream);
                return Ok(lease);
            }
        }
    }

    /// The stream of a lease.
    pub fn stream(&self, borrower: BorrowerId, lease: LeaseId) -> Result<StreamId, LendingError> {
        let leases = self.borrowers.get(&borrower).ok_or(LendingError::NoLease)?;
        leases.get(&lease).copied().ok_or(LendingError::NoLease)
    }

    /// A borrower returns a lease. Returns the stream, which has one reader less.
    pub fn on_returned(
        &mut self,
        borrower: BorrowerId,
        lease: LeaseId,
    ) -> Result<StreamId, LendingError> {
        let leases = self.borrowers.get_mut(&borrower).ok_or(LendingError::NoLease)?;
        leases.remove(&lease).ok_or(LendingError::NoLease)
    }

    /// A borrower is gone. Returns the streams of its leases, each with one reader less.
    pub fn on_disconnect(&mut self, borrower: BorrowerId) -> Vec<StreamId> {
        self.borrowers.remove(&borrower).unwrap_or_default().into_values().collect()
    }

    /// Number of borrowers.
    pub fn borrowers(&self) -> usize {
        self.borrowers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every lease ends exactly once, however its borrower ends.
    #[test]
    fn leases_end_once_and_are_bounded() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut lending, mut readers) = (Lending::default(), BTreeMap::<StreamId, u32>::new());
        let mut borrowers: Vec<(BorrowerId, Vec<LeaseId>)> = Vec::new();
        for round in 0..20_000 {
            match random.u32(..10) {
                0 => match lending.on_connect() {
                    Ok(id) => borrowers.push((id, Vec::new())),
                    Err(error) => {
                        assert_eq!(error, LendingError::TooManyBorrowers);
                        assert_eq!(borrowers.len(), BORROWERS_MAX);
                    }
                },
                1 if round % 7 == 0 && !borrowers.is_empty() => {
                    let (id, leases) = borrowers.swap_remove(random.usize(..borrowers.len()));
                    let streams = lending.on_disconnect(id);
                    assert_eq!(streams.len(), leases.len());
                    for stream in streams {
                        *readers.get_mut(&stream).unwrap() -= 1;
                    }
                    assert!(lending.on_disconnect(id).is_empty());
                    assert_eq!(lending.check_room(id), Err(LendingError::NoLease));
                }
                2..6 if !borrowers.is_empty() => {
                    let (id, leases) = random.choice(&mut borrowers).unwrap();
                    let stream = StreamId(random.u64(..5));
                    leases.push(lending.on_lent(*id, stream).unwrap());
                    *readers.entry(stream).or_default() += 1;
                }
                _ if !borrowers.is_empty() => {
                    let (id, leases) = random.choice(&mut borrowers).unwrap();
                    let Some(lease) = leases.pop() else { continue };
                    let stream = lending.stream(*id, lease).unwrap();
                    assert_eq!(lending.on_returned(*id, lease), Ok(stream));
                    assert_eq!(lending.on_returned(*id, lease), Err(LendingError::NoLease));
                    *readers.get_mut(&stream).unwrap() -= 1;
                }
                _ => {}
            }
            assert_eq!(lending.borrowers(), borrowers.len());
        }
        for (id, _) in borrowers {
            for stream in lending.on_disconnect(id) {
                *readers.get_mut(&stream).unwrap() -= 1;
            }
        }
        assert!(readers.values().all(|count| *count == 0), "{readers:?}");
    }

    #[test]
    fn a_flood_of_leases_is_refused() {
        let mut lending = Lending::default();
        let [one, other] = [(); 2].map(|()| lending.on_connect().unwrap());
        for _ in 0..LEASES_MAX {
            lending.on_lent(one, StreamId(0)).unwrap();
        }
        assert_eq!(lending.on_lent(one, StreamId(0)), Err(LendingError::TooManyLeases));
        assert!(lending.on_lent(other, StreamId(0)).is_ok(), "others are not affected");
    }
}
