//! A grouped trace in memory: requests, each a few keys, one after the other in one flat array.

use forebay_core::embedding::{Key, TableId, TableShape};
use hashbrown::HashMap;

/// One table of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The column it came from.
    pub name: String,
    /// How many different keys the trace asks it for.
    pub rows: u64,
    /// Bytes of one row.
    pub row_bytes: u32,
}

/// Requests in the order of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    name: String,
    synthetic: bool,
    tables: Vec<Table>,
    keys: Vec<Key>,
    /// Where each request ends in `keys`.
    ends: Vec<usize>,
}

impl Trace {
    /// What it is called in tables and pictures; synthetic traces say that they are.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Was it generated?
    pub fn synthetic(&self) -> bool {
        self.synthetic
    }

    /// Its tables; the first is `TableId(0)`.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The shapes of its tables, as a policy wants them.
    pub fn shapes(&self) -> Vec<TableShape> {
        let shape = |table: &Table| TableShape { rows: table.rows, row_bytes: table.row_bytes };
        self.tables.iter().map(shape).collect()
    }

    /// How many different keys it asks for: the working set that cache sizes are a share of.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Has it none?
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many keys its requests have together.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The keys of one request.
    pub fn request(&self, index: usize) -> &[Key] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.keys[start..self.ends[index]]
    }

    /// All requests in order.
    pub fn requests(&self) -> impl Iterator<Item = &[Key]> + '_ {
        (0..self.len()).map(|index| self.request(index))
    }

    /// Only the first requests; the working set shrinks with them.
    #[must_use]
    pub fn first(mut self, requests: usize) -> Trace {
        self.ends.truncate(requests);
        self.keys.truncate(self.ends.last().copied().unwrap_or(0));
        for table in &mut self.tables {
            table.rows = 0;
        }
        // Rows are numbered in the order of their first appearance.
        for key in &self.keys {
            let rows = &mut self.tables[usize::from(key.table().0)].rows;
            *rows = (*rows).max(key.row() + 1);
        }
        self
    }

    /// The same requests with only some of the tables, in the given order (figure 7.4 of the dissertation).
    #[must_use]
    pub fn with_tables(&self, tables: &[TableId]) -> Trace {
        let mut builder = TraceBuilder::new(self.name.clone());
        builder.synthetic = self.synthetic;
        for table in tables {
            builder.table(&self.tables[usize::from(table.0)].name);
        }
        for request in self.requests() {
            for (index, table) in tables.iter().enumerate() {
                for key in request.iter().filter(|key| key.table() == *table) {
                    builder.key(index, &key.row().to_le_bytes());
                }
            }
            builder.end_request();
        }
        builder.build()
    }
}

/// Row bytes where a trace does not say: dimension 36 in single precision, as in the dissertation.
const ROW_BYTES: u32 = 4 * 36;

/// Collects requests; values of a table are numbered in the order in which they first appear.
#[derive(Debug, Default)]
pub struct TraceBuilder {
    name: String,
    /// Mark a generated trace as such.
    pub synthetic: bool,
    names: Vec<String>,
    numbers: Vec<HashMap<Vec<u8>, u64>>,
    keys: Vec<Key>,
    ends: Vec<usize>,
}

impl TraceBuilder {
    /// An empty trace of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds a table; the index is what [`TraceBuilder::key`] wants.
    pub fn table(&mut self, name: &str) -> usize {
        assert!(self.names.len() < usize::from(u16::MAX), "table ids are 16-bit");
        self.names.push(name.to_owned());
        self.numbers.push(HashMap::new());
        self.names.len() - 1
    }

    /// Adds a key to the current request: the row of `table` that stands for this value.
    pub fn key(&mut self, table: usize, value: &[u8]) {
        let numbers = &mut self.numbers[table];
        let next = numbers.len() as u64;
        let row = *numbers.entry_ref(value).or_insert(next);
        let table = TableId(u16::try_from(table).expect("tables are counted in 16 bits"));
        self.keys.push(Key::new(table, row).expect("fewer than 2^48 different values"));
    }

    /// Ends the current request.
    pub fn end_request(&mut self) {
        self.ends.push(self.keys.len());
    }

    /// The trace.
    pub fn build(self) -> Trace {
        let sized = |(name, numbers): (String, HashMap<Vec<u8>, u64>)| Table {
            name,
            rows: numbers.len() as u64,
            row_bytes: ROW_BYTES,
        };
        Trace {
            name: self.name,
            synthetic: self.synthetic,
            tables: self.names.into_iter().zip(self.numbers).map(sized).collect(),
            keys: self.keys,
            ends: self.ends,
        }
    }
}
