//! Decoder of `.npy` headers: a magic number, a version, and a Python dictionary with three
//! entries.
//!
//! A small parser reads the dictionary. It accepts exactly the values that NumPy writes; an error
//! names anything else.

use super::{Dtype, FormatError, Layout};

const MAGIC: &[u8] = b"\x93NUMPY";
/// NumPy's own default limit is 10,000 bytes; a table's dictionary has about a hundred.
const HEADER_MAX: usize = 64 << 10;

/// Result of decoding the start of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Npy {
    /// More of the file is needed: this number of bytes from its start.
    Needs(usize),
    /// A table.
    Table(Layout),
}

/// Decodes the start of a `.npy` file of `file` bytes.
pub fn npy(start: &[u8], file: u64) -> Result<Npy, FormatError> {
    let Some((preamble, rest)) = start.split_at_checked(8) else { return needs(8, file) };
    if !preamble.starts_with(MAGIC) {
        return Err(malformed("it does not begin with NumPy's magic number"));
    }
    let (length, header_at) = match preamble[6] {
        1 => match rest.first_chunk::<2>() {
            Some(length) => (usize::from(u16::from_le_bytes(*length)), 10),
            None => return needs(10, file),
        },
        2 | 3 => match rest.first_chunk::<4>() {
            Some(length) => (u32::from_le_bytes(*length) as usize, 12),
            None => return needs(12, file),
        },
        version => return Err(malformed(&format!("its version, {version}, is unknown"))),
    };
    if length > HEADER_MAX {
        return Err(malformed(&format!("its header has {length} bytes")));
    }
    let Some(header) = start.get(header_at..header_at + length) else {
        return needs(header_at + length, file);
    };
    let header = std::str::from_utf8(header).map_err(|_| malformed("its header is not UTF-8"))?;
    let Header { descr, fortran_order, shape } = Parser(header).header()?;
    let dtype = match descr {
        "<f4" => Dtype::F32,
        "<f8" => Dtype::F64,
        "<f2" => Dtype::F16,
        other => return Err(FormatError::Dtype { found: format!("`{other}`") }),
    };
    let [rows, dimension] = shape[..] else { return Err(FormatError::Shape { shape }) };
    if fortran_order && rows > 1 && dimension > 1 {
        return Err(FormatError::Fortran);
    }
    let offset = (header_at + length) as u64;
    Layout::new(dtype, rows, dimension, offset, file).map(Npy::Table)
}

fn needs(bytes: usize, file: u64) -> Result<Npy, FormatError> {
    if bytes as u64 > file {
        return Err(FormatError::Truncated { needed: bytes as u128, file });
    }
    Ok(Npy::Needs(bytes))
}

fn malformed(problem: &str) -> FormatError {
    FormatError::Malformed { expected: "a .npy file", problem: problem.to_owned() }
}

struct Header<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// A parser, with the part of the dictionary that it has not read yet.
struct Parser<'a>(&'a str);

impl<'a> Parser<'a> {
    fn header(mut self) -> Result<Header<'a>, FormatError> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.take('}') {
            let name = self.quoted()?;
            self.expect(':')?;
            let twice = match name {
                "descr" => descr.replace(self.quoted()?).is_some(),
                "fortran_order" => fortran_order.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.numbers()?).is_some(),
                other => return Err(malformed(&format!("its header has a `{other}`"))),
            };
            if twice {
                return Err(malformed(&format!("its header has two `{name}`")));
            }
            if !self.take(',') {
                self.expect('}')?;
                break;
            }
        }
        self.skip_space();
        if !self.0.is_empty() {
            return Err(malformed("data follows its header's dictionary"));
        }
        let missing = |name| move || malformed(&format!("its header has no `{name}`"));
        Ok(Header {
            descr: descr.ok_or_else(missing("descr"))?,
            fortran_order: fortran_order.ok_or_else(missing("fortran_order"))?,
            shape: shape.ok_or_else(missing("shape"))?,
        })
    }

    fn skip_space(&mut self) {
        self.0 = self.0.trim_start();
    }

    fn take(&mut self, wanted: char) -> bool {
        self.skip_space();
        let rest = self.0.strip_prefix(wanted);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, wanted: char) -> Result<(), FormatError> {
        if self.take(wanted) {
            return Ok(());
        }
        let found: String = self.0.chars().take(8).collect();
        Err(malformed(&format!("its header has `{found}` instead of `{wanted}`")))
    }

    fn quoted(&mut self) -> Result<&'a str, FormatError> {
        let quote = if self.take('"') {
            '"'
        } else {
            self.expect('\'')?;
            '\''
        };
        let (text, rest) = self
            .0
            .split_once(quote)
            .ok_or_else(|| malformed("a string in its header is not closed"))?;
        self.0 = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool, FormatError> {
        self.skip_space();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.0.strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err(malformed("`fortran_order` is neither True nor False"))
    }

    fn numbers(&mut self) -> Result<Vec<u64>, FormatError> {
        let mut numbers = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            self.skip_space();
            let end = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
            let (digits, rest) = self.0.split_at(end);
            let number =
                digits.parse().map_err(|_| malformed("its shape is not made of numbers"))?;
            numbers.push(number);
            self.0 = rest;
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header in NumPy's form: padded with spaces to a multiple of 64 bytes.
    fn header(dictionary: &str) -> Vec<u8> {
        let padding = 64 - (10 + dictionary.len() + 1) % 64;
        let header = format!("{dictionary}{}\n", " ".repeat(padding));
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        [MAGIC, &[1, 0], &length, header.as_bytes()].concat()
    }

    fn rejected(dictionary: &str) -> String {
        npy(&header(dictionary), 1 << 20).unwrap_err().to_string()
    }

    #[test]
    fn a_table_is_decoded() {
        let start = header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000, 16), }");
        let offset = start.len() as u64;
        let file = offset + 64_000;
        let found = Layout { dtype: Dtype::F32, rows: 1000, dimension: 16, offset };
        assert_eq!(npy(&start, file), Ok(Npy::Table(found)));
        assert_eq!(
            npy(&start, file - 1),
            Err(FormatError::Truncated { needed: u128::from(file), file: file - 1 })
        );
    }

    #[test]
    fn a_short_start_gives_the_number_of_bytes_needed() {
        let start = header("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 1), }");
        let file = start.len() as u64 + 16;
        let mut have = 0;
        loop {
            match npy(&start[..have], file).unwrap() {
                Npy::Needs(more) => {
                    assert!(more > have, "{more} after {have}");
                    have = more;
                }
                Npy::Table(layout) => break assert_eq!(layout.rows, 2),
            }
        }
        assert!(matches!(npy(&start[..9], 9), Err(FormatError::Truncated { needed: 10, .. })));
    }

    #[test]
    fn invalid_headers_are_rejected_with_the_reason() {
        for (dictionary, expected) in [
            ("{'descr': '>f4', 'fortran_order': False, 'shape': (1, 1), }", "`>f4`"),
            ("{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1), }", "`<i8`"),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }", "Fortran"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }", "[7]"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (7, 0), }", "0 numbers"),
            ("{'descr': '<f4', 'fortran_order': False, }", "no `shape`"),
            ("{'descr': '<f4', 'descr': '<f4', }", "two `descr`"),
            ("{'descr': [('a', '<f4')], 'shape': (1, 1), }", "instead of `'`"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 1), }", "not made of numbers"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)} x", "follows"),
            ("{'object': 1}", "`object`"),
        ] {
            let text = rejected(dictionary);
            assert!(text.contains(expected), "{dictionary}: {text}");
        }
        assert!(npy(b"PK\x03\x04 a zip file", 100).unwrap_err().to_string().contains("magic"));
        assert!(npy(b"\x93NUMPY\x09\x00", 100).unwrap_err().to_string().contains("version, 9"));
        let long = [MAGIC, &[2, 0], &u32::MAX.to_le_bytes()].concat();
        assert!(npy(&long, u64::MAX).unwrap_err().to_string().contains("4294967295 bytes"));
    }
}
