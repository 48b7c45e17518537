//! A model of families against random calls: what is read is what was written, memory and space
//! come back, and no call waits forever.

use std::collections::BTreeMap;

use forebay_core::streams::{Lifetime, catalogue::CatalogueError};
use forebay_streams::{
    Block, CreateOptions, Family, FullPolicy, OpenOptions, Reader, Store, StreamError, Writer,
};

use crate::sim::{SimEngine, content, new_disk, open_store, seeds};

/// A stream as it should be: seed and length of each block.
#[derive(Default, Clone)]
struct Expected {
    blocks: Vec<(u64, usize)>,
    sealed: bool,
    durable: bool,
    consumed: bool,
}

struct OpenReader {
    reader: Reader,
    name: String,
    blocks: Vec<(u64, usize)>,
    position: usize,
    held: Vec<(Block, (u64, usize))>,
    consumes: bool,
}

struct Model {
    random: fastrand::Rng,
    streams: BTreeMap<String, Expected>,
    writers: Vec<(Writer, String)>,
    readers: Vec<OpenReader>,
    families: Vec<(Family, Vec<String>)>,
}

impl Model {
    fn act(&mut self, engine: &SimEngine, store: &Store) {
        match self.random.u8(..20) {
            0..3 => self.create(store),
            3..10 => self.append(engine),
            10 | 11 => self.seal(engine),
            12 | 13 => self.open(store),
            14..17 => self.next(engine),
            17 => self.destroy(engine, store),
            18 => self.drop_some(),
            _ => {
                for _ in 0..self.random.u32(..30) {
                    engine.step();
                }
            }
        }
    }

    fn create(&mut self, store: &Store) {
        let name = format!("s{}", self.random.u8(..8));
        let lifetime = if self.random.bool() { Lifetime::Kept } else { Lifetime::Process };
        let options = CreateOptions { lifetime, full: FullPolicy::Error };
        let in_family = self.random.bool();
        let (writer, durable) = if in_family {
            if self.families.len() < 2 {
                let family = store.family("family", lifetime).unwrap();
                self.families.push((family, Vec::new()));
            }
            let at = self.random.usize(..self.families.len());
            let (family, names) = &mut self.families[at];
            names.push(name.clone());
            (family.create(&name, FullPolicy::Error), family.lifetime() == Lifetime::Kept)
        } else {
            (store.create(&name, options), lifetime == Lifetime::Kept)
        };
        match (writer, self.streams.contains_key(&name)) {
            (Ok(writer), false) => {
                self.writers.push((writer, name.clone()));
                self.streams.insert(name, Expected { durable, ..Expected::default() });
            }
            (Err(StreamError::Catalogue(CatalogueError::Taken(_))), true) => {}
            (outcome, taken) => panic!("{:?} while taken is {taken}", outcome.err()),
        }
    }

    fn append(&mut self, engine: &SimEngine) {
        if self.writers.is_empty() {
            return;
        }
        let at = self.random.usize(..self.writers.len());
        let (writer, name) = &mut self.writers[at];
        let seed = self.random.u64(..);
        let longest = if self.random.bool() { 5000 } else { 200_000 };
        let length = self.random.usize(..=longest);
        let block = content(seed, length);
        let reserved = length + self.random.usize(..=100_000);
        let outcome = if self.random.bool() {
            engine.run(writer.append_async(&block))
        } else {
            let mut reservation = engine.run(writer.reserve_async(reserved)).unwrap();
            reservation.bytes_mut()[..length].copy_from_slice(&block);
            if self.random.u8(..5) == 0 {
                return; // Dropped: nothing of it is found.
            }
            engine.run(writer.commit_async(reservation, length))
        };
        match outcome {
            Ok(()) => self.streams.get_mut(name).unwrap().blocks.push((seed, length)),
            Err(StreamError::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn seal(&mut self, engine: &SimEngine) {
        if self.writers.is_empty() {
            return;
        }
        let at = self.random.usize(..self.writers.len());
        let (writer, name) = self.writers.swap_remove(at);
        let expected = self.streams.get_mut(&name).unwrap();
        match engine.run(writer.seal_async()) {
            Ok(info) => {
                let bytes: usize = expected.blocks.iter().map(|(_, length)| length).sum();
                assert_eq!((info.blocks, info.bytes), (expected.blocks.len() as u64, bytes as u64));
                expected.sealed = true;
            }
            // The record found no space; the stream is gone.
            Err(StreamError::Write { .. }) => drop(self.streams.remove(&name)),
            Err(error) => panic!("{error}"),
        }
    }

    fn open(&mut self, store: &Store) {
        if self.readers.len() > 3 {
            return;
        }
        let name = format!("s{}", self.random.u8(..8));
        let consumes = self.random.u8(..4) == 0;
        let depth = self.random.u32(1..4);
        let options = OpenOptions {
            depth,
            in_flight: self.random.u32(1..4),
            consume: consumes,
            ..OpenOptions::default()
        };
        let others = self.readers.iter().filter(|open| open.name == name).count();
        let expected = self.streams.get_mut(&name);
        match (store.open(&name, options), expected) {
            (Ok(reader), Some(expected)) if expected.sealed && !expected.consumed => {
                assert!(!consumes || others == 0);
                expected.consumed = consumes;
                let blocks = expected.blocks.clone();
                let (position, held) = (0, Vec::new());
                let open = OpenReader { reader, name, blocks, position, held, consumes };
                self.readers.push(open);
            }
            (Ok(_), _) => panic!("{name} cannot be opened"),
            (Err(StreamError::Memory { .. }), _) => {}
            (Err(StreamError::Catalogue(error)), expected) => match error {
                CatalogueError::NotFound(_) => assert!(expected.is_none()),
                CatalogueError::Unsealed(_) => assert!(expected.is_some_and(|it| !it.sealed)),
                CatalogueError::Consumed(_) => assert!(expected.is_some_and(|it| it.consumed)),
                CatalogueError::InUse { .. } => assert!(consumes && others > 0),
                error => panic!("{error}"),
            },
            (Err(error), _) => panic!("{error}"),
        }
    }

    fn next(&mut self, engine: &SimEngine) {
        if self.readers.is_empty() {
            return;
        }
        let at = self.random.usize(..self.readers.len());
        let open = &mut self.readers[at];
        match engine.run(open.reader.next_async()) {
            Some(Ok(block)) => {
                let (seed, length) = open.blocks[open.position];
                assert_eq!(block[..], content(seed, length)[..], "promise 9: never altered");
                assert_eq!(block.as_ptr().align_offset(64), 0, "blocks are aligned");
                open.held.push((block, (seed, length)));
                open.position += 1;
            }
            None => {
                assert_eq!(open.position, open.blocks.len(), "promise 9: never shorter");
                let open = self.readers.swap_remove(at);
                if open.consumes {
                    self.streams.remove(&open.name);
                }
            }
            Some(Err(error)) => panic!("{error}"),
        }
        // Blocks are valid while they are held, whatever the reader does.
        if let Some(open) = self.readers.get_mut(at) {
            let keep = self.random.usize(..6);
            while open.held.len() > keep {
                let (block, (seed, length)) = open.held.swap_remove(0);
                assert_eq!(block[..], content(seed, length)[..]);
            }
        }
    }

    fn destroy(&mut self, engine: &SimEngine, store: &Store) {
        let name = format!("s{}", self.random.u8(..8));
        let is_open = self.readers.iter().any(|open| open.name == name);
        let is_written = self.writers.iter().any(|(_, other)| *other == name);
        if is_open || is_written {
            return;
        }
        let outcome = engine.run(store.destroy_async(&name));
        assert_eq!(outcome.is_ok(), self.streams.remove(&name).is_some(), "{outcome:?}");
    }

    fn drop_some(&mut self) {
        if self.random.bool() && !self.writers.is_empty() {
            let at = self.random.usize(..self.writers.len());
            let (_, name) = self.writers.swap_remove(at);
            self.streams.remove(&name);
        } else if !self.readers.is_empty() {
            let at = self.random.usize(..self.readers.len());
            self.readers.swap_remove(at);
        }
    }

    /// A crash: what was sealed and durable stays, unless it was being consumed.
    fn crash(&mut self) {
        self.writers.clear();
        self.readers.clear();
        self.families.clear();
        self.streams.retain(|_, it| it.sealed && it.durable && !it.consumed);
    }
}

/// Promises 6 and 9.
#[test]
fn random_calls_follow_the_model() {
    for seed in seeds(150) {
        let random = fastrand::Rng::with_seed(seed);
        let (mut engine, mut store) = open_store(new_disk(seed, 40), 1);
        let mut model = Model {
            random,
            streams: BTreeMap::new(),
            writers: Vec::new(),
            readers: Vec::new(),
            families: Vec::new(),
        };
        for _ in 0..200 {
            model.act(&engine, &store);
            if model.random.u32(..150) == 0 {
                let disk = engine.crash();
                let half: Vec<String> = model
                    .streams
                    .iter()
                    .filter(|(_, it)| it.consumed)
                    .map(|(name, _)| name.clone())
                    .collect();
                model.crash();
                drop((store, engine));
                (engine, store) = open_store(disk, 1);
                // A half consumed stream may be found, whole or with lost blocks.
                for name in half {
                    let _ = engine.run(store.destroy_async(&name));
                }
                let found: Vec<_> = store.list().iter().map(|it| it.name.to_string()).collect();
                let expected: Vec<_> = model.streams.keys().cloned().collect();
                assert_eq!(found, expected, "seed {seed}");
            }
        }
        model.readers.clear();
        model.writers.clear();
        for info in store.list() {
            engine.run(store.destroy_async(info.name.as_str())).unwrap();
        }
        for (family, _) in model.families.drain(..) {
            engine.run(family.destroy_async()).unwrap();
        }
        engine.settle();
        let facts = store.facts();
        assert_eq!(facts.free, facts.capacity, "seed {seed}: all space is back");
        assert_eq!(facts.write_memory_free, facts.write_memory, "seed {seed}");
        assert_eq!(facts.read_memory_free, facts.read_memory, "seed {seed}");
    }
}

/// A full store: the error names the numbers; a waiting writer continues when a consumer frees
/// regions; a consuming reader needs no space of its own.
#[test]
fn a_writer_waits_for_the_space_that_a_consumer_frees() {
    let (engine, store) = open_store(new_disk(1, 8), 1);
    let length = usize::try_from(store.block_length()).unwrap();
    let mut first = store.create("first", CreateOptions::default()).unwrap();
    for block in 0..6 {
        engine.run(first.append_async(&content(block, length))).unwrap();
    }
    engine.run(first.seal_async()).unwrap();
    let waits = CreateOptions { full: FullPolicy::Wait, ..CreateOptions::default() };
    let mut second = store.create("second", waits).unwrap();
    for block in 0..2 {
        engine.run(second.append_async(&content(100 + block, length))).unwrap();
    }
    let mut third = store.create("third", CreateOptions::default()).unwrap();
    let error = engine.run(third.append_async(&content(7, length))).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("\"third\"") && text.contains("8 MiB"), "{text}");
    assert!(text.contains("let the writer wait for space") && !text.contains("::"), "{text}");
    let consume = OpenOptions { depth: 2, consume: true, ..OpenOptions::default() };
    let mut reader = store.open("first", consume).unwrap();
    let write = async {
        for block in 2..8 {
            second.append_async(&content(100 + block, length)).await.unwrap();
        }
        second.seal_async().await.unwrap()
    };
    let read = async {
        let mut block = 0;
        while let Some(found) = reader.next_async().await {
            assert_eq!(found.unwrap()[..], content(block, length)[..]);
            block += 1;
        }
        block
    };
    let (info, read) = engine.run(async { futures::join!(write, read) });
    assert_eq!((info.blocks, read), (8, 6));
    assert!(matches!(
        store.open("first", OpenOptions::default()),
        Err(StreamError::Catalogue(CatalogueError::NotFound(_)))
    ));
}

/// A reader follows a writer to the seal; a dropped writer is an error, not an end.
#[test]
fn a_follower_reads_what_is_being_written() {
    for seed in seeds(40) {
        let (engine, store) = open_store(new_disk(seed, 16), 1);
        let seals = seed % 2 == 0;
        let mut writer = store.create("s", CreateOptions::default()).unwrap();
        let follow = OpenOptions { depth: 2, follow: true, ..OpenOptions::default() };
        let mut reader = store.open("s", follow).unwrap();
        let write = async {
            for block in 0..10 {
                writer.append_async(&content(block, 50_000)).await.unwrap();
            }
            if seals {
                writer.seal_async().await.unwrap();
            }
        };
        let read = async {
            for block in 0.. {
                match reader.next_async().await {
                    Some(Ok(found)) => assert_eq!(found[..], content(block, 50_000)[..]),
                    Some(Err(StreamError::Abandoned(_) | StreamError::Destroyed(_))) => {
                        return assert!(!seals);
                    }
                    None => return assert!(seals && block == 10),
                    Some(Err(error)) => panic!("{error}"),
                }
            }
        };
        engine.run(async { futures::join!(write, read) });
    }
}

/// A thousand short streams in one family take the space of their bytes.
#[test]
fn short_streams_of_a_family_share_regions() {
    let (engine, store) = open_store(new_disk(1, 24), 1);
    let family = store.family("query", Lifetime::Process).unwrap();
    let mut writers: Vec<Writer> = (0..200)
        .map(|number| family.create(&format!("spill {number}"), FullPolicy::Error).unwrap())
        .collect();
    for block in 0..2 {
        for (number, writer) in (0..).zip(&mut writers) {
            engine.run(writer.append_async(&content(number * 2 + block, 32 << 10))).unwrap();
        }
    }
    for writer in writers {
        engine.run(writer.seal_async()).unwrap();
    }
    let facts = store.facts();
    assert!(facts.device_written.0 * 100 <= facts.written.0 * 115, "{facts:?}");
    for number in 0..200 {
        let options = OpenOptions { depth: 1, ..OpenOptions::default() };
        let mut reader = store.open(&format!("spill {number}"), options).unwrap();
        for block in 0..2 {
            let found = engine.run(reader.next_async()).unwrap().unwrap();
            assert_eq!(found[..], content(number * 2 + block, 32 << 10)[..]);
        }
        assert!(engine.run(reader.next_async()).is_none());
    }
    engine.run(family.destroy_async()).unwrap();
    engine.settle();
    assert_eq!(store.facts().free, store.facts().capacity);
}
