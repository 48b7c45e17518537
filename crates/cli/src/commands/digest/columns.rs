//! Columns of a digest from a CSV file, whose first column names the object.

use std::{collections::HashMap, path::Path};

use anyhow::{Context as _, bail, ensure};
use forebay_digest::{ColumnGuess, ColumnType, Value};

/// Columns by object, in memory: about the size of the file.
#[derive(Debug, Default)]
pub struct Columns {
    /// Names and types.
    pub kinds: Vec<(String, ColumnType)>,
    rows: HashMap<Box<str>, Box<[Box<str>]>>,
}

impl Columns {
    /// Reads a CSV file whose first line names the columns.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let reader = csv::ReaderBuilder::new().flexible(false).from_path(path);
        let columns = reader.map_err(anyhow::Error::from).and_then(Self::collect);
        columns.with_context(|| format!("cannot read the columns in `{}`", path.display()))
    }

    fn collect(mut reader: csv::Reader<std::fs::File>) -> anyhow::Result<Self> {
        let names: Vec<String> = reader.headers()?.iter().skip(1).map(str::to_owned).collect();
        ensure!(
            !names.is_empty(),
            "there is no column besides the first, which names the object; add one, such as \
             `object,label`"
        );
        for (at, name) in names.iter().enumerate() {
            ensure!(!name.is_empty(), "column {} has no name; give it one", at + 2);
            ensure!(
                !name.chars().any(char::is_control),
                "the column name `{}` has a control character; choose another",
                name.escape_debug()
            );
            ensure!(
                !["offset", "length"].contains(&name.as_str()) && !names[..at].contains(name),
                "the column name `{name}` is taken; choose another"
            );
        }
        let mut guesses = vec![ColumnGuess::default(); names.len()];
        let mut rows = HashMap::new();
        for record in reader.into_records() {
            let record =
                record.context("every line needs the number of fields of the first line")?;
            let line = record.position().map_or(0, csv::Position::line);
            let mut fields = record.iter();
            let object = fields.next().unwrap_or_default();
            let values: Box<[Box<str>]> = fields.map(Into::into).collect();
            for (guess, value) in guesses.iter_mut().zip(&values) {
                guess.see(value);
            }
            if rows.insert(object.into(), values).is_some() {
                bail!(
                    "line {line} names `{}` a second time; keep one of the two",
                    object.escape_debug()
                );
            }
        }
        let kinds = names.into_iter().zip(guesses.iter().map(|guess| guess.kind())).collect();
        Ok(Self { kinds, rows })
    }

    /// The values of an object; all missing if it is not in the file.
    pub fn values(&self, object: &str) -> Vec<Value<'_>> {
        match self.rows.get(object) {
            Some(row) => {
                let typed = row.iter().zip(&self.kinds);
                typed.map(|(text, (_, kind))| kind.parse(text).unwrap_or(Value::Missing)).collect()
            }
            None => vec![Value::Missing; self.kinds.len()],
        }
    }

    /// Whether the file has a row for this object.
    pub fn contains(&self, object: &str) -> bool {
        self.rows.contains_key(object)
    }

    /// Number of objects in the file.
    pub fn len(&self) -> usize {
        self.rows.len()
    }
}
