//! Who may begin to write a blob, given what is being written.
//!
//! Writing takes memory until the whole is believed, so there are limits: for a connection, for all of them, and
//! for a tenant, who must not be able to stop everybody else.

use crate::claims::Holder;

/// Blobs that one connection may be writing.
pub const OF_HOLDER_MAX: usize = 64;
/// Blobs that all connections together may be writing.
pub const ALL_MAX: usize = 256;
/// Of those, and of the memory for them, a tenant may have one part in so many.
const TENANTS_PART: usize = 2;

/// A blob that is being written.
#[derive(Debug, Clone, Copy)]
pub struct UnderWay {
    /// By which connection.
    pub holder: Holder,
    /// Of whom; nobody, where there are no tenants.
    pub tenant: Option<usize>,
    /// Bytes that it takes for now.
    pub memory: usize,
}

/// Whether somebody may begin another, if so much memory is for all of them.
pub fn may_begin(
    under_way: impl IntoIterator<Item = UnderWay>,
    holder: Holder,
    tenant: Option<usize>,
    memory_max: usize,
) -> bool {
    let (mut all, mut own, mut of_tenant, mut memory) = (0, 0, 0, 0);
    for put in under_way {
        all += 1;
        own += usize::from(put.holder == holder);
        if tenant.is_some() && put.tenant == tenant {
            of_tenant += 1;
            memory += put.memory;
        }
    }
    own < OF_HOLDER_MAX
        && all < ALL_MAX
        && of_tenant < ALL_MAX / TENANTS_PART
        && memory < memory_max / TENANTS_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    fn puts(count: usize, holder: u64, tenant: Option<usize>, memory: usize) -> Vec<UnderWay> {
        (0..count).map(|_| UnderWay { holder: Holder(holder), tenant, memory }).collect()
    }

    fn from_many(count: usize, tenant: Option<usize>) -> Vec<UnderWay> {
        (0..count as u64).flat_map(|holder| puts(1, 100 + holder, tenant, 1)).collect()
    }

    #[test]
    fn a_connection_and_all_together_have_their_limits() {
        let may = |under_way| may_begin(under_way, Holder(1), None, 1000);
        assert!(may(puts(OF_HOLDER_MAX - 1, 1, None, 0)));
        assert!(!may(puts(OF_HOLDER_MAX, 1, None, 0)));
        assert!(may(puts(OF_HOLDER_MAX, 2, None, 0)), "others' are not one's own");
        assert!(may(from_many(ALL_MAX - 1, None)) && !may(from_many(ALL_MAX, None)));
    }

    /// No tenant takes more than half of the room, in blobs or in bytes.
    #[test]
    fn a_tenant_leaves_room_for_others() {
        let half = from_many(ALL_MAX / 2, Some(7));
        assert!(!may_begin(half.clone(), Holder(1), Some(7), 1 << 20));
        assert!(may_begin(half.clone(), Holder(1), Some(8), 1 << 20));
        assert!(may_begin(half, Holder(1), None, 1 << 20), "where there are none, nobody is one");
        assert!(may_begin(puts(2, 2, Some(7), 249), Holder(1), Some(7), 1000));
        assert!(!may_begin(puts(2, 2, Some(7), 250), Holder(1), Some(7), 1000));
    }
}
