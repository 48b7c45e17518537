//! Prefetch: brings rows into memory before the lookup that needs them.
//!
//! A caller that knows some keys of a request early, such as the user's, passes them here. The rows
//! of these keys, and of all keys that they imply, are read as far as the policy admits them. A
//! prefetch is a lookup (`lookup.rs`) with steps 1 and 2 of its own and without step 4.

use crate::{
    bags::Bags,
    error::LookupError,
    lookup::add_missing,
    tables::{PolicyState, Scratch, Tables, key},
};

impl Tables {
    /// Reads the rows of `known` keys (a table's number, and keys of it) and of all keys that they
    /// imply, and keeps those that the policy admits. Returns the number of rows read. A row that
    /// is not admitted, or evicted before its lookup, is read again then.
    pub fn prefetch(&self, known: &[(usize, &[i64])]) -> Result<u64, LookupError> {
        for (table, keys) in known {
            let tables = self.layouts.len();
            let layout = self.layouts.get(*table);
            let layout = layout.ok_or(LookupError::NoTable { table: *table, tables })?;
            Bags::single(keys).check(*table, layout.rows)?;
        }
        let mut scratch = self.idle.lock().take();
        self.decide_prefetch(known, &mut scratch);
        self.find_missing(&mut scratch);
        let read = self.read_missing(&mut scratch);
        let rows = scratch.fetched.missing().len() as u64;
        if let Ok(cost) = &read {
            self.counters.add_prefetch(rows, cost.reads, cost.bytes);
        }
        self.apply_decisions(&scratch.fetched, read.is_ok());
        self.idle.lock().give(scratch);
        read?;
        Ok(rows)
    }

    /// Step 1: collects the keys that are known or implied and should be resident.
    fn decide_prefetch(&self, known: &[(usize, &[i64])], scratch: &mut Scratch) {
        let Scratch { keys, slots, outcome, .. } = scratch;
        keys.clear();
        slots.clear();
        for (table, rows) in known {
            keys.extend(rows.iter().map(|row| key(*table, row.cast_unsigned())));
        }
        let Some(state) = &self.policy else {
            keys.retain(|key| self.pinned[usize::from(key.table().0)]);
            return slots.resize(keys.len(), None);
        };
        let mut state = state.lock();
        let PolicyState { policy, evicted } = &mut *state;
        let mut implied = Vec::new();
        policy.implied(keys, &mut implied);
        keys.append(&mut implied);
        // A wrong association may imply a row that its table does not have.
        keys.retain(|key| key.row() < self.layouts[usize::from(key.table().0)].rows);
        policy.prefetch(keys, outcome);
        evicted.append(&mut outcome.evicted);
        keys.retain(|key| self.pinned[usize::from(key.table().0)] || policy.contains(*key));
        slots.extend(keys.iter().map(|key| policy.slot(*key)));
    }

    /// Step 2: notes the keys that are not in memory.
    fn find_missing(&self, scratch: &mut Scratch) {
        let Scratch { keys, slots, fetched, .. } = scratch;
        fetched.clear(self.layouts.len());
        let resident = self.resident.read();
        for (key, slot) in keys.iter().zip(slots) {
            let table = usize::from(key.table().0);
            let view = resident.view(table);
            if view.find(key.row(), *slot).is_none() {
                add_missing(fetched, &resident, view, table, key.row());
            }
        }
    }
}
