//! Put limits: whether a connection may start another put.
//!
//! A put buffers its bytes until the whole blob is verified. Limits per connection, per tenant and
//! in total bound that memory, and keep one tenant from blocking the others.

use crate::node::{claims::Holder, tenants::TenantId};

/// Concurrent puts per connection.
pub const PER_HOLDER_MAX: usize = 64;
/// Concurrent puts of all connections together.
pub const TOTAL_MAX: usize = 256;
/// A tenant may use one part in this many of the puts and of their memory.
const TENANT_SHARE: usize = 2;

/// A put in progress.
#[derive(Debug, Clone, Copy)]
pub struct PutInProgress {
    /// The connection.
    pub holder: Holder,
    /// The tenant, if the node has tenants.
    pub tenant: Option<TenantId>,
    /// Bytes buffered.
    pub memory: usize,
}

/// Whether `holder` may start another put, if all puts together may use `memory_max` bytes.
pub fn may_begin(
    in_progress: impl IntoIterator<Item = PutInProgress>,
    holder: Holder,
    tenant: Option<TenantId>,
    memory_max: usize,
) -> bool {
    let (mut all, mut own, mut of_tenant, mut memory) = (0, 0, 0, 0);
    for put in in_progress {
        all += 1;
        own += usize::from(put.holder == holder);
        if tenant.is_some() && put.tenant == tenant {
            of_tenant += 1;
            memory += put.memory;
        }
    }
    own < PER_HOLDER_MAX
        && all < TOTAL_MAX
        && of_tenant < TOTAL_MAX / TENANT_SHARE
        && memory < memory_max / TENANT_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn puts(
        count: usize,
        holder: u64,
        tenant: Option<TenantId>,
        memory: usize,
    ) -> Vec<PutInProgress> {
        (0..count).map(|_| PutInProgress { holder: Holder(holder), tenant, memory }).collect()
    }

    fn from_many(count: usize, tenant: Option<TenantId>) -> Vec<PutInProgress> {
        (0..count as u64).flat_map(|holder| puts(1, 100 + holder, tenant, 1)).collect()
    }

    #[test]
    fn puts_are_limited_per_connection_and_in_total() {
        let may = |in_progress| may_begin(in_progress, Holder(1), None, 1000);
        assert!(may(puts(PER_HOLDER_MAX - 1, 1, None, 0)));
        assert!(!may(puts(PER_HOLDER_MAX, 1, None, 0)));
        assert!(may(puts(PER_HOLDER_MAX, 2, None, 0)), "puts of another connection");
        assert!(may(from_many(TOTAL_MAX - 1, None)) && !may(from_many(TOTAL_MAX, None)));
    }

    /// A tenant gets at most half of the puts and half of their memory.
    #[test]
    fn a_tenant_gets_at_most_half() {
        let half = from_many(TOTAL_MAX / 2, Some(TenantId(7)));
        assert!(!may_begin(half.clone(), Holder(1), Some(TenantId(7)), 1 << 20));
        assert!(may_begin(half.clone(), Holder(1), Some(TenantId(8)), 1 << 20));
        assert!(may_begin(half, Holder(1), None, 1 << 20), "a node without tenants");
        assert!(may_begin(puts(2, 2, Some(TenantId(7)), 249), Holder(1), Some(TenantId(7)), 1000));
        assert!(!may_begin(puts(2, 2, Some(TenantId(7)), 250), Holder(1), Some(TenantId(7)), 1000));
    }
}
