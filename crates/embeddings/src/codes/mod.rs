//! Codes: rows of float32 written in fewer bits, and read back with a small error.
//!
//! | code | bytes of a row of `n` numbers | layout |
//! |---|---|---|
//! | `f16`, `bf16` | 2n | one number after the other |
//! | `i8`, `i4` | n + 8, n/2 + 4 | codes, then scale and bias of the row, as PyTorch packs them |
//! | `i8-tbe`, `i4-tbe` | n + 4, n/2 + 4 | scale and bias in half precision, then codes (FBGEMM) |
//! | `ev16`, `ev8`, `ev4` | 2n, n, n/2 | the static dictionaries of `EVStore` (6.3), to compare |
//!
//! Encoders and decoders are pure functions. Each is one plain loop, compiled twice: for every CPU
//! and for CPUs with AVX2, chosen at run time. Both give the same bits, since the loops contain
//! no reductions that a compiler may reorder.
//!
//! A row with NaN, infinity, or a range beyond the code has the error infinity.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "codes are truncated to their bits, after rounding and clamping"
)]

mod dictionary;
mod half;
mod rowwise;

use std::{fmt, str::FromStr};

use crate::format::Dtype;

/// How a row is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Eight bits, scale and bias in single precision behind the codes.
    I8,
    /// Four bits, scale and bias in half precision behind the codes.
    I4,
    /// Eight bits, scale and bias in half precision in front of the codes.
    I8Tbe,
    /// Four bits, scale and bias in half precision in front of the codes.
    I4Tbe,
    /// 16 bits, linear between -1 and 1, the sign in the last bit.
    Ev16,
    /// Eight bits, linear between -1 and 1.
    Ev8,
    /// Four bits: 15 values, dense near 0.
    Ev4,
}

/// A name that no code has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no code `{}`; there are {}", .0.escape_debug(), Code::names())]
pub struct CodeError(String);

/// How `i4` chooses the range of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RangeChoice {
    /// From the smallest to the largest number: the bytes that PyTorch and FBGEMM write.
    Full,
    /// The best of 25 ranges that cut off up to 12 % at either end. Clipping the few outermost
    /// numbers makes all steps smaller.
    #[default]
    Searched,
}

impl Code {
    /// All codes.
    pub const ALL: [Code; 9] = [
        Self::F16,
        Self::Bf16,
        Self::I8,
        Self::I4,
        Self::I8Tbe,
        Self::I4Tbe,
        Self::Ev16,
        Self::Ev8,
        Self::Ev4,
    ];

    /// The name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::I4 => "i4",
            Self::I8Tbe => "i8-tbe",
            Self::I4Tbe => "i4-tbe",
            Self::Ev16 => "ev16",
            Self::Ev8 => "ev8",
            Self::Ev4 => "ev4",
        }
    }

    /// The dtype of its rows in a file, whose name is accepted too.
    pub(crate) const fn dtype(self) -> Option<Dtype> {
        match self {
            Self::F16 => Some(Dtype::F16),
            Self::Bf16 => Some(Dtype::Bf16),
            Self::I8 => Some(Dtype::I8),
            Self::I4 => Some(Dtype::I4),
            Self::I8Tbe => Some(Dtype::I8Tbe),
            Self::I4Tbe => Some(Dtype::I4Tbe),
            Self::Ev16 | Self::Ev8 | Self::Ev4 => None,
        }
    }

    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Bytes of a row of `dimension` numbers.
    pub const fn row_bytes(self, dimension: u64) -> u64 {
        match self {
            Self::F16 | Self::Bf16 | Self::Ev16 => dimension.saturating_mul(2),
            Self::I8 => dimension.saturating_add(8),
            Self::I8Tbe => dimension.saturating_add(4),
            Self::I4 | Self::I4Tbe => dimension.div_ceil(2).saturating_add(4),
            Self::Ev8 => dimension,
            Self::Ev4 => dimension.div_ceil(2),
        }
    }

    /// Writes a row to `out`, which has [`Code::row_bytes`]. Returns the row error: the norm of the
    /// difference to the decoded row, divided by the norm of the row.
    ///
    /// # Panics
    ///
    /// If `out` has another length.
    pub fn encode(self, row: &[f32], range: RangeChoice, out: &mut [u8]) -> f32 {
        assert_eq!(out.len() as u64, self.row_bytes(row.len() as u64), "a row of {self}");
        dispatch(Encode { code: self, row, range, out });
        self.error(row, out)
    }

    /// Reads a row.
    ///
    /// # Panics
    ///
    /// If `bytes` is no row of `out.len()` numbers.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len() as u64, self.row_bytes(out.len() as u64), "a row of {self}");
        dispatch(Decode { code: self, bytes, out, put: |at: &mut f32, number| *at = number });
    }

    /// Reads a row and adds it to `sum`, in one pass.
    ///
    /// # Panics
    ///
    /// If `bytes` is no row of `sum.len()` numbers.
    pub fn add(self, bytes: &[u8], sum: &mut [f32]) {
        assert_eq!(bytes.len() as u64, self.row_bytes(sum.len() as u64), "a row of {self}");
        dispatch(Decode { code: self, bytes, out: sum, put: |at: &mut f32, number| *at += number });
    }

    /// Error of an encoded row.
    fn error(self, row: &[f32], bytes: &[u8]) -> f32 {
        let mut decoded = vec![0.0; row.len()];
        self.decode(bytes, &mut decoded);
        let square = |number: f64| number * number;
        let difference: f64 = row
            .iter()
            .zip(&decoded)
            .map(|(exact, coded)| square(f64::from(*exact) - f64::from(*coded)))
            .sum();
        let norm: f64 = row.iter().map(|exact| square(f64::from(*exact))).sum();
        if difference == 0.0 {
            return 0.0;
        }
        let error = (difference / norm).sqrt();
        // Of a zero row that does not come back as zeros, and of rows with NaN or infinity.
        if error.is_nan() { f32::INFINITY } else { error as f32 }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Code {
    type Err = CodeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_dtype = |code: Code| code.dtype().is_some_and(|dtype| dtype.name() == text);
        let known = Self::ALL.into_iter().find(|code| code.name() == text || is_dtype(*code));
        known.ok_or_else(|| CodeError(text.to_owned()))
    }
}

/// Work that is compiled for every CPU and for CPUs with AVX2.
trait Kernel {
    fn run(self);
}

struct Encode<'a> {
    code: Code,
    row: &'a [f32],
    range: RangeChoice,
    out: &'a mut [u8],
}

impl Kernel for Encode<'_> {
    #[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
    #[inline(always)]
    fn run(self) {
        let Self { code, row, range, out } = self;
        match code {
            Code::F16 => half::encode(row, out, half::to_f16),
            Code::Bf16 => half::encode(row, out, half::to_bf16),
            Code::I8 => rowwise::encode_i8(row, out),
            Code::I8Tbe => rowwise::encode_i8_tbe(row, out),
            Code::I4 => {
                let codes = out.len() - rowwise::HALVES;
                let (codes, ends) = out.split_at_mut(codes);
                rowwise::encode_i4(row, range, codes, ends);
            }
            Code::I4Tbe => {
                let (ends, codes) = out.split_at_mut(rowwise::HALVES);
                rowwise::encode_i4(row, range, codes, ends);
            }
            Code::Ev16 => half::encode(row, out, dictionary::to_ev16),
            Code::Ev8 => dictionary::encode_ev8(row, out),
            Code::Ev4 => dictionary::encode_ev4(row, out),
        }
    }
}

struct Decode<'a, Put> {
    code: Code,
    bytes: &'a [u8],
    out: &'a mut [f32],
    put: Put,
}

impl<Put: Fn(&mut f32, f32)> Kernel for Decode<'_, Put> {
    #[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
    #[inline(always)]
    fn run(self) {
        let Self { code, bytes, out, put } = self;
        match code {
            Code::F16 => half::decode(bytes, out, half::from_f16, put),
            Code::Bf16 => half::decode(bytes, out, half::from_bf16, put),
            Code::Ev16 => half::decode(bytes, out, dictionary::from_ev16, put),
            Code::Ev8 => dictionary::decode_ev8(bytes, out, put),
            Code::Ev4 => dictionary::decode_ev4(bytes, out, put),
            Code::I8 => {
                let (codes, ends) = bytes.split_at(out.len());
                rowwise::decode_i8(codes, rowwise::singles(ends), out, put);
            }
            Code::I8Tbe => {
                let (ends, codes) = bytes.split_at(rowwise::HALVES);
                rowwise::decode_i8(codes, rowwise::halves(ends), out, put);
            }
            Code::I4 => {
                let (codes, ends) = bytes.split_at(bytes.len() - rowwise::HALVES);
                rowwise::decode_i4(codes, rowwise::halves(ends), out, put);
            }
            Code::I4Tbe => {
                let (ends, codes) = bytes.split_at(rowwise::HALVES);
                rowwise::decode_i4(codes, rowwise::halves(ends), out, put);
            }
        }
    }
}

/// Runs the version for this CPU.
#[inline]
fn dispatch(kernel: impl Kernel) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2(kernel: impl Kernel) {
            kernel.run();
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            #[expect(unsafe_code, reason = "a function for a CPU feature is called")]
            // SAFETY: the CPU has the feature.
            unsafe {
                with_avx2(kernel);
            }
            return;
        }
    }
    kernel.run();
}

#[cfg(test)]
mod tests;
