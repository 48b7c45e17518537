//! A grouped trace in memory: the keys of all requests in one flat array.

use forebay_core::embeddings::{Key, TableId, TableShape};
use hashbrown::HashMap;

/// One table of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Name of its column.
    pub name: String,
    /// Distinct keys in the trace.
    pub rows: u64,
    /// Bytes of one row.
    pub row_bytes: u32,
}

/// Requests in time order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    name: String,
    synthetic: bool,
    tables: Vec<Table>,
    keys: Vec<Key>,
    /// End of each request in `keys`.
    ends: Vec<usize>,
}

impl Trace {
    /// Name in tables and pictures. Names of synthetic traces say so.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it was generated.
    pub fn synthetic(&self) -> bool {
        self.synthetic
    }

    /// Its tables; the first is `TableId(0)`.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Shapes of its tables.
    pub fn shapes(&self) -> Vec<TableShape> {
        let shape = |table: &Table| TableShape { rows: table.rows, row_bytes: table.row_bytes };
        self.tables.iter().map(shape).collect()
    }

    /// Distinct rows: the working set, of which cache sizes are a share.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it has no requests.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of keys of all requests.
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

    /// The first `requests` requests, with a smaller working set.
    #[must_use]
    pub fn first(mut self, requests: usize) -> Trace {
        self.ends.truncate(requests);
        self.keys.truncate(self.ends.last().copied().unwrap_or(0));
        for table in &mut self.tables {
            table.rows = 0;
        }
        // Rows are numbered in order of first appearance.
        for key in &self.keys {
            let rows = &mut self.tables[usize::from(key.table().0)].rows;
            *rows = (*rows).max(key.row() + 1);
        }
        self
    }

    /// The same requests with these tables only, in this order (figure 7.4 of the dissertation).
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

/// Bytes of a row: dimension 36 in single precision, as in the dissertation.
const ROW_BYTES: u32 = 4 * 36;

/// Builds a trace. Values of a table are numbered in order of first appearance.
#[derive(Debug, Default)]
pub struct TraceBuilder {
    name: String,
    /// Whether the trace is generated.
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

    /// Adds a table. Returns its index for [`TraceBuilder::key`].
    pub fn table(&mut self, name: &str) -> usize {
        assert!(self.names.len() < usize::from(u16::MAX), "table ids are 16-bit");
        self.names.push(name.to_owned());
        self.numbers.push(HashMap::new());
        self.names.len() - 1
    }

    /// Adds the row of a value to the current request.
    pub fn key(&mut self, table: usize, value: &[u8]) {
        let numbers = &mut self.numbers[table];
        let next = numbers.len() as u64;
        let row = *numbers.entry_ref(value).or_insert(next);
        let table = TableId(u16::try_from(table).expect("table ids are 16-bit"));
        self.keys.push(Key::new(table, row).expect("fewer than 2^48 different values"));
    }

    /// Ends the current request.
    pub fn end_request(&mut self) {
        self.ends.push(self.keys.len());
    }

    /// Builds the trace.
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
