//! Files: missing, truncated, changed, replaced, or not tables at all.

use std::{fs, path::Path};

use forebay_core::ByteSize;
use forebay_embeddings::{
    Bags, Contents, Io, LookupError, OpenError, Options, Pooling, ReplaceError, Source, Tables,
    format::{Dtype, FormatError},
    inspect,
};

use crate::{
    lookups::numbered,
    model::{npy, safetensors},
};

fn open(source: Source) -> Result<Tables, OpenError> {
    Tables::open(&[source], &Options::new(ByteSize::ZERO))
}

/// The number that fills one row of a table with rows of four numbers.
fn look(tables: &Tables, key: i64) -> Result<f32, LookupError> {
    let mut out = [0.0; 4];
    tables.lookup(&[Bags::single(&[key])], Pooling::Sum, &mut out)?;
    assert!(out.iter().all(|number| *number == out[0]), "a torn row: {out:?}");
    Ok(out[0])
}

#[test]
fn a_file_that_is_no_table_is_rejected_with_its_name_and_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("table");
    let rejected = |content: &[u8], source: Source| {
        fs::write(&path, content).unwrap();
        let text = open(source).unwrap_err().to_string();
        assert!(text.contains("table"), "it names the file: {text}");
        text
    };
    let plain = || Source::file(&path);
    assert!(rejected(b"", plain()).contains("give their dtype"));
    assert!(rejected(b"abc", plain()).contains("give their dtype"));
    assert!(rejected(&[0xff; 100], plain()).contains("give their dtype"));
    assert!(rejected(b"\x93NUMPY\x01\x00\xff\xff", plain()).contains("cut off"));
    assert!(rejected(&[7; 10], plain().raw(Dtype::F32, 3)).contains("no multiple"));
    let rows = vec![vec![0; 8]; 3];
    let two = safetensors(&[("a", Dtype::F32, 2, &rows), ("b", Dtype::F32, 2, &rows)]);
    assert!(rejected(&two, plain()).contains("`a`, `b`"));
    assert!(rejected(&two, plain().tensor("c")).contains("has no tensor `c`; it has `a`, `b`"));
    assert!(rejected(&two[..two.len() - 1], plain().tensor("a")).contains("cut off"));
    let array = npy(Dtype::F32, 2, &rows);
    assert!(rejected(&array, plain().tensor("a")).contains("has no tensor `a`; it has none"));
    assert!(rejected(&array[..array.len() - 1], plain()).contains("cut off"));
    let text = open(Source::file(directory.path().join("nowhere"))).unwrap_err().to_string();
    assert!(text.contains("there is no file") && text.contains("nowhere"), "{text}");
    let text = open(Source::file(directory.path())).unwrap_err().to_string();
    assert!(text.contains("is no file"), "{text}");
    let none = Tables::open(&[], &Options::new(ByteSize::ZERO));
    assert!(matches!(none, Err(OpenError::None)));
}

/// A pinned table larger than the machine's memory is an error and does not end the process.
#[test]
fn pinned_tables_larger_than_memory_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sparse");
    fs::File::create(&path).unwrap().set_len(1 << 43).unwrap();
    let source = Source::file(&path).raw(Dtype::F32, 64);
    let rejected = Tables::open(&[source], &Options::new(ByteSize(1 << 44))).unwrap_err();
    assert!(matches!(rejected, OpenError::Memory { .. }), "{rejected}");
    assert!(rejected.to_string().contains("give less `memory`"), "{rejected}");
}

#[test]
fn the_contents_of_a_file_are_decoded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("table");
    let rows = vec![vec![0; 8]; 3];
    fs::write(&path, npy(Dtype::F64, 1, &rows)).unwrap();
    let (contents, length) = inspect(&path).unwrap();
    let Contents::Npy { table } = contents else { panic!("{contents:?}") };
    assert_eq!((table.dtype, table.rows, table.dimension), (Dtype::F64, 3, 1));
    assert_eq!(length, table.offset + 24);
    fs::write(&path, safetensors(&[("only", Dtype::F32, 2, &rows)])).unwrap();
    let (Contents::Safetensors { tensors }, _) = inspect(&path).unwrap() else { panic!() };
    assert_eq!((tensors.len(), tensors[0].name.as_str()), (1, "only"));
    assert!(open(Source::file(&path)).is_ok(), "a single table needs no name");
}

#[test]
fn several_tables_of_one_file_are_distinguished() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let full = |number: f32| vec![number.to_le_bytes().repeat(4); 5];
    let (a, b) = (full(1.0), full(2.0));
    fs::write(&path, safetensors(&[("a", Dtype::F32, 4, &a), ("b", Dtype::F32, 4, &b)])).unwrap();
    let sources = ["b", "a"].map(|name| Source::file(&path).tensor(name));
    let tables = Tables::open(&sources, &Options::new(ByteSize::ZERO)).unwrap();
    let mut out = [0.0; 8];
    tables.lookup(&[Bags::single(&[4]), Bags::single(&[0])], Pooling::Sum, &mut out).unwrap();
    assert_eq!(out, [2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]);
}

/// Promise 1: never wrong bytes.
#[test]
fn a_file_that_is_truncated_or_changed_gives_errors_instead_of_rows() {
    for io in [Io::Auto, Io::Pread] {
        let directory = tempfile::tempdir().unwrap();
        let source = numbered(directory.path(), 4000, 4);
        let options = Options { io, ..Options::new(ByteSize::ZERO) };
        let tables = Tables::open(std::slice::from_ref(&source), &options).unwrap();
        assert_eq!(look(&tables, 3999).unwrap(), 3999.0);
        let file = fs::File::options().write(true).open(&source.path).unwrap();
        file.set_len(40_000).unwrap();
        for key in [3999, 0] {
            let text = look(&tables, key).unwrap_err().to_string();
            assert!(text.contains("cut off") && text.contains("to 40000 bytes"), "{text}");
        }
        // The same length, but other contents.
        file.set_len(64_000).unwrap();
        let text = look(&tables, 1).unwrap_err().to_string();
        assert!(text.contains("changed by another process"), "{text}");
        tables.replace_table(0, &source).unwrap();
        assert_eq!(look(&tables, 1).unwrap(), 1.0);
        assert_eq!(look(&tables, 3999).unwrap(), 0.0, "the new version");
    }
}

#[test]
fn a_file_that_was_renamed_over_is_read_in_its_old_version() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (numbered(directory.path(), 100, 4), directory.path().join("new"));
    let tables = open(old.clone()).unwrap();
    fs::write(&new, 9.0_f32.to_le_bytes().repeat(400)).unwrap();
    fs::rename(&new, &old.path).unwrap();
    assert_eq!(look(&tables, 50).unwrap(), 50.0);
    let error = tables.replace_rows(0, 0, &[0; 16]).unwrap_err().to_string();
    assert!(error.contains("another file has taken its place"), "{error}");
    tables.replace_table(0, &old).unwrap();
    assert_eq!(look(&tables, 50).unwrap(), 9.0);
}

/// The guide promises: "Several tables may be the same rows of one file; `replace_rows` replaces
/// them in all". This holds also after tables were moved to the file one by one.
#[test]
fn tables_that_were_replaced_by_one_file_share_it() {
    let directory = tempfile::tempdir().unwrap();
    let one = numbered(directory.path(), 100, 4);
    let other = Source { path: directory.path().join("other"), ..one.clone() };
    fs::copy(&one.path, &other.path).unwrap();
    for memory in [0, 1 << 20] {
        let options = Options::new(ByteSize(memory));
        let tables = Tables::open(&[one.clone(), one.clone()], &options).unwrap();
        let both = |key: i64| {
            let mut out = [0.0; 8];
            let keys = [key];
            let bags = [Bags::single(&keys), Bags::single(&keys)];
            tables.lookup(&bags, Pooling::Sum, &mut out).map(|()| (out[0], out[4]))
        };
        for source in [&one, &other] {
            for table in 0..2 {
                tables.replace_table(table, source).unwrap();
                assert_eq!(both(7).unwrap(), (7.0, 7.0));
            }
            tables.replace_rows(0, 7, &9.0_f32.to_le_bytes().repeat(4)).unwrap();
            assert_eq!(both(7).unwrap(), (9.0, 9.0));
            assert_eq!(both(8).unwrap(), (8.0, 8.0));
            tables.replace_rows(1, 7, &7.0_f32.to_le_bytes().repeat(4)).unwrap();
            assert_eq!(both(7).unwrap(), (7.0, 7.0));
        }
    }
}

#[test]
fn replaced_rows_are_visible_at_once_and_written_to_the_file() {
    for memory in [0, 1000, 2 << 20] {
        let directory = tempfile::tempdir().unwrap();
        let source = numbered(directory.path(), 20_000, 4);
        let options = Options::new(ByteSize::ZERO);
        let tables = crate::open(std::slice::from_ref(&source), options, memory);
        for key in 95..105 {
            look(&tables, key).unwrap();
        }
        let rows = [700.0_f32, 701.0].map(|number| number.to_le_bytes().repeat(4)).concat();
        tables.replace_rows(0, 100, &rows).unwrap();
        for (key, expected) in [(99, 99.0_f32), (100, 700.0), (101, 701.0), (102, 102.0)] {
            assert_eq!(look(&tables, key).unwrap(), expected, "{memory}");
        }
        assert_eq!(fs::read(&source.path).unwrap()[1600..1632], rows);
        assert_eq!(tables.stats().rows_replaced, 2);
    }
}

#[test]
fn replacements_of_another_shape_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let source = numbered(directory.path(), 10, 4);
    let tables = open(source).unwrap();
    let rows = |first, bytes: &[u8]| tables.replace_rows(0, first, bytes).unwrap_err();
    assert!(matches!(rows(0, &[0; 15]), ReplaceError::Uneven { given: 15, row_bytes: 16 }));
    assert!(matches!(rows(9, &[0; 32]), ReplaceError::Rows { first: 9, count: 2, rows: 10 }));
    assert!(matches!(rows(u64::MAX, &[0; 16]), ReplaceError::Rows { .. }));
    assert!(matches!(tables.replace_rows(1, 0, &[]), Err(ReplaceError::NoTable { table: 1, .. })));
    let other = numbered(directory.path(), 11, 4);
    let error = tables.replace_table(0, &other).unwrap_err().to_string();
    assert!(error.contains("11 rows of 4 float32, the old one 10"), "{error}");
    let nothing = tables.replace_table(0, &Source::file(Path::new("/nowhere")));
    assert!(matches!(nothing, Err(ReplaceError::Open(OpenError::Missing { .. }))));
    let format = OpenError::Format { path: "x".into(), source: FormatError::NoTable };
    assert!(format.to_string().starts_with("`x` has no table"));
}

/// Two features may share a table: a replacement in one is visible in the other, under any file
/// name.
#[test]
fn tables_that_share_rows_are_replaced_together() {
    for memory in [0, 6000, 4 << 20] {
        let directory = tempfile::tempdir().unwrap();
        let source = numbered(directory.path(), 20_000, 4);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&source.path, &link).unwrap();
        let mut other = Source { path: link, ..source.clone() };
        let mut pairs = source.clone().raw(Dtype::F32, 8);
        pairs.raw.as_mut().unwrap().offset = 32;
        let sources = [source.clone(), source.clone(), other.clone(), pairs];
        let tables = crate::open(&sources, Options::new(ByteSize::ZERO), memory);
        let look = |key: i64| {
            let mut out = [0.0; 20];
            let keys = [[key], [key], [key], [(key - 2) / 2]];
            let bags = keys.each_ref().map(|keys| Bags::single(keys));
            tables.lookup(&bags, Pooling::Sum, &mut out).unwrap();
            [out[0], out[4], out[8], out[12]]
        };
        (0..3).for_each(|_| assert_eq!(look(100), [100.0; 4]));
        tables.replace_rows(1, 100, &7.0_f32.to_le_bytes().repeat(4)).unwrap();
        assert_eq!(look(100), [7.0; 4], "{memory}");
        assert_eq!(look(102), [102.0; 4], "{memory}");
        other.path = directory.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&other.path).status().unwrap().success());
        let text = open(other).unwrap_err().to_string();
        assert!(text.contains("is no file"), "opening a pipe does not block: {text}");
    }
}
