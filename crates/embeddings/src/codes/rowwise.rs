//! Row-wise codes: integers, with a scale and a bias for each row.
//!
//! A number is `code x scale + bias`. PyTorch's fused rows (`embedding_bag_byte_prepack`,
//! `embedding_bag_4bit_prepack`) have the codes first; FBGEMM's table-batched embeddings have scale
//! and bias first, in half precision. With [`RangeChoice::Full`] the bytes equal theirs.

use super::{
    RangeChoice,
    half::{from_f16, to_f16},
};

/// Bytes of scale and bias in half precision.
pub(super) const HALVES: usize = 4;

/// Added to the range of an `i8` row, so that a constant row is not divided by 0; PyTorch's value.
const EPSILON: f32 = 1e-8;

/// Shares of the range that [`RangeChoice::Searched`] cuts off at either end. Finer steps lower the
/// error by less than 2 %.
const CUTS: [f32; 5] = [0.0, 0.03, 0.06, 0.09, 0.12];

/// Largest code of four bits.
const I4_MAX: f32 = 15.0;

/// Scale and bias of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Affine {
    scale: f32,
    bias: f32,
}

/// Scale and bias in single precision.
#[inline]
pub(super) fn singles(bytes: &[u8]) -> Affine {
    let number = |at: usize| {
        let bytes = bytes.as_chunks::<4>().0[at];
        f32::from_le_bytes(bytes)
    };
    Affine { scale: number(0), bias: number(1) }
}

/// Scale and bias in half precision.
#[inline]
pub(super) fn halves(bytes: &[u8]) -> Affine {
    let number = |at: usize| from_f16(u16::from_le_bytes(bytes.as_chunks::<2>().0[at]));
    Affine { scale: number(0), bias: number(1) }
}

/// Smallest and largest number of a row; both 0 for an empty row.
#[inline]
fn ends(row: &[f32]) -> (f32, f32) {
    let Some(first) = row.first() else { return (0.0, 0.0) };
    let least = |least: f32, number: &f32| if *number < least { *number } else { least };
    let most = |most: f32, number: &f32| if *number > most { *number } else { most };
    (row.iter().fold(*first, least), row.iter().fold(*first, most))
}

/// Writes the codes of eight bits; returns scale and bias.
#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
fn encode_bytes(row: &[f32], codes: &mut [u8]) -> Affine {
    let (least, most) = ends(row);
    let range = most - least;
    let inverse = 255.0 / (range + EPSILON);
    for (code, number) in codes.iter_mut().zip(row) {
        *code = ((number - least) * inverse).round_ties_even() as u8;
    }
    Affine { scale: range / 255.0, bias: least }
}

#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn encode_i8(row: &[f32], out: &mut [u8]) {
    let (codes, ends) = out.split_at_mut(row.len());
    let Affine { scale, bias } = encode_bytes(row, codes);
    ends[..4].copy_from_slice(&scale.to_le_bytes());
    ends[4..].copy_from_slice(&bias.to_le_bytes());
}

#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn encode_i8_tbe(row: &[f32], out: &mut [u8]) {
    let (ends, codes) = out.split_at_mut(HALVES);
    let Affine { scale, bias } = encode_bytes(row, codes);
    ends[..2].copy_from_slice(&to_f16(scale).to_le_bytes());
    ends[2..].copy_from_slice(&to_f16(bias).to_le_bytes());
}

/// Scale and bias of four bits for a range, as they are after rounding to half precision.
#[inline]
fn affine_i4(least: f32, most: f32) -> Affine {
    let bias = from_f16(to_f16(least));
    let range = most - bias;
    let scale = if range == 0.0 { 1.0 } else { from_f16(to_f16(range / I4_MAX)) };
    // The range of a nearly constant row is too small for half precision.
    let scale = if scale == 0.0 || (1.0 / scale).is_infinite() { 1.0 } else { scale };
    Affine { scale, bias }
}

/// The code of a number, as a float.
#[expect(clippy::manual_clamp, reason = "a clamp would keep NaN")]
#[inline]
fn code_i4(number: f32, bias: f32, inverse: f32) -> f32 {
    ((number - bias) * inverse).round_ties_even().max(0.0).min(I4_MAX)
}

/// Sum of squared differences, in eight lanes that are added in the same order on every CPU.
#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
fn squared_error(row: &[f32], Affine { scale, bias }: Affine) -> f32 {
    let inverse = 1.0 / scale;
    let square = |number: f32| {
        let difference = code_i4(number, bias, inverse) * scale + bias - number;
        difference * difference
    };
    let (eights, rest) = row.as_chunks::<8>();
    let mut lanes = [0.0_f32; 8];
    for eight in eights {
        for (lane, number) in lanes.iter_mut().zip(eight) {
            *lane += square(*number);
        }
    }
    lanes.into_iter().chain(rest.iter().map(|number| square(*number))).sum()
}

/// The range with the smallest error.
#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
fn search(row: &[f32], least: f32, most: f32) -> Affine {
    let range = most - least;
    let mut best = affine_i4(least, most);
    let mut error = squared_error(row, best);
    for below in CUTS {
        for above in CUTS {
            let affine = affine_i4(least + below * range, most - above * range);
            let candidate = squared_error(row, affine);
            if candidate < error {
                (best, error) = (affine, candidate);
            }
        }
    }
    best
}

/// Writes codes of four bits, the first of a byte in its lower half, and scale and bias to `ends`.
#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn encode_i4(row: &[f32], choice: RangeChoice, codes: &mut [u8], affine: &mut [u8]) {
    let (least, most) = ends(row);
    let Affine { scale, bias } = match choice {
        RangeChoice::Full => affine_i4(least, most),
        RangeChoice::Searched => search(row, least, most),
    };
    let inverse = 1.0 / scale;
    for (byte, pair) in codes.iter_mut().zip(row.chunks(2)) {
        let low = code_i4(pair[0], bias, inverse) as u8;
        let high = pair.get(1).map_or(0, |number| code_i4(*number, bias, inverse) as u8);
        *byte = low | high << 4;
    }
    affine[..2].copy_from_slice(&to_f16(scale).to_le_bytes());
    affine[2..].copy_from_slice(&to_f16(bias).to_le_bytes());
}

#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn decode_i8(
    codes: &[u8],
    Affine { scale, bias }: Affine,
    out: &mut [f32],
    put: impl Fn(&mut f32, f32),
) {
    for (at, code) in out.iter_mut().zip(codes) {
        put(at, f32::from(*code) * scale + bias);
    }
}

#[expect(clippy::inline_always, reason = "its caller decides for which CPU it is compiled")]
#[inline(always)]
pub(super) fn decode_i4(
    codes: &[u8],
    Affine { scale, bias }: Affine,
    out: &mut [f32],
    put: impl Fn(&mut f32, f32),
) {
    let number = |code: u8| f32::from(code) * scale + bias;
    let (pairs, last) = out.as_chunks_mut::<2>();
    for ([low, high], byte) in pairs.iter_mut().zip(codes) {
        put(low, number(byte & 15));
        put(high, number(byte >> 4));
    }
    if let ([at], Some(byte)) = (last, codes.last()) {
        put(at, number(byte & 15));
    }
}
