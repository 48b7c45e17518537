//! Presence: which blobs of a dataset are here. What is told in which words, `core::presence` decides; here
//! stock is taken, for all who ask about a dataset at once, and not more often than is of use.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use forebay_core::{
    DatasetId,
    presence::Stock,
    table::{Row, Table},
};
use forebay_wire::{ErrorCode, PRESENCE_MAX, Reply};
use parking_lot::Mutex;

use crate::{
    node::{NodeService, Refused},
    session::fresh_nonce,
};

/// Stock that was taken less than this ago will do for whoever knew an older one,
const AGE_MIN: Duration = Duration::from_millis(20);
/// and it is taken for one part in so many of the time at most.
const TIME_SHARE: u32 = 20;
/// Bytes of presence that are made while nobody else has a turn.
const PIECE: usize = 512;

/// The stocks of datasets that somebody asks about.
#[derive(Default)]
pub(crate) struct Stocks(Mutex<HashMap<DatasetId, Weak<TableStock>>>);

/// What is here of a dataset.
pub(crate) struct TableStock {
    table: Arc<Table>,
    state: Mutex<State>,
}

struct State {
    stock: Stock,
    next: Option<Instant>,
}

impl Stocks {
    /// The stock of a dataset, shared by all connections that ask.
    pub fn of(&self, table: &Arc<Table>) -> Result<Arc<TableStock>, Refused> {
        let blobs = u32::try_from(table.rows().len()).ok().filter(|blobs| *blobs <= PRESENCE_MAX);
        let blobs = blobs.ok_or_else(not_so_many)?;
        let mut stocks = self.0.lock();
        if let Some(known) = stocks.get(&table.dataset()).and_then(Weak::upgrade) {
            return Ok(known);
        }
        stocks.retain(|_, stock| stock.strong_count() > 0);
        let nonce = fresh_nonce()
            .ok_or_else(|| (ErrorCode::Failed, "the node has no randomness".to_owned()))?;
        let first_version = u64::from_le_bytes(*nonce.first_chunk().expect("longer"));
        let state = State { stock: Stock::new(blobs, first_version), next: None };
        let stock = Arc::new(TableStock { table: Arc::clone(table), state: Mutex::new(state) });
        stocks.insert(table.dataset(), Arc::downgrade(&stock));
        Ok(stock)
    }
}

impl NodeService {
    /// Which of these blobs are here, or what has changed since a version. Takes its time: not for a thread
    /// that others wait for.
    pub(crate) fn presence(
        &self,
        of: &TableStock,
        first: u64,
        count: u32,
        since: u64,
    ) -> Result<Reply, Refused> {
        let blobs = of.table.rows().len() as u64;
        first.checked_add(count.into()).filter(|end| *end <= blobs).ok_or_else(not_so_many)?;
        let first = u32::try_from(first).map_err(|_| not_so_many())?;
        let mut state = of.state.lock();
        let State { stock, next } = &mut *state;
        let began = Instant::now();
        // Whoever knows nothing is told how things are now.
        if since == 0 || next.is_none_or(|next| began >= next) {
            stock.take(self.bits_of(of.table.rows()));
            *next = Some(Instant::now() + AGE_MIN.max(began.elapsed() * TIME_SHARE));
        }
        Ok(Reply::Presence { version: stock.version(), told: stock.told(since, first, count) })
    }

    fn bits_of(&self, rows: &[Row]) -> Vec<u8> {
        let mut bits = vec![0_u8; rows.len().div_ceil(8)];
        // Piece by piece, so that the others have their turn in between.
        for (rows, bits) in rows.chunks(8 * PIECE).zip(bits.chunks_mut(PIECE)) {
            for (at, row) in rows.iter().enumerate() {
                if self.blobs.contains(&row.address) {
                    bits[at / 8] |= 1 << (at % 8);
                }
            }
        }
        bits
    }
}

fn not_so_many() -> Refused {
    (ErrorCode::Malformed, "not so many blobs".to_owned())
}
